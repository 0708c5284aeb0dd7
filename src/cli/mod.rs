//! The command line: thin clients of the control API.
