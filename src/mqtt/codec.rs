//! Bytes to packets and back; the only file that names the codec library.
