//! The master key: what the database holds of keys and secrets is worthless without it.
//!
//! 256 random bits in a file of mode 0600. They are never used as they are: HKDF-SHA-256 (RFC 5869)
//! derives one key per label, so that a sealed realm key cannot be opened as anything else. Sealed
//! bytes are AES-256-GCM with a random nonce in front and the label as associated data, and start
//! with a check value of the key, so that a wrong key is told from damaged bytes.
//!
//! Shape of sealed bytes: version 1 (1 byte), check value (8), nonce (12), ciphertext, tag (16).

use std::{
    fmt, fs,
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hkdf, hmac,
    rand::{SecureRandom as _, SystemRandom},
};
use zeroize::Zeroizing;

const FILE_PREFIX: &str = "tanit-master-key-v1:";
const FILE_BYTES_MAX: u64 = 1024;
const SEALED_VERSION: u8 = 1;
const CHECK_BYTES: usize = 8;
const HEADER_BYTES: usize = 1 + CHECK_BYTES;

/// Why the master key cannot be had. All of these are the operator's to mend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MasterKeyError {
    /// There is a database but no key to it.
    #[error(
        "the master key {0} is missing; put back the file that this data directory was made with \
         (without it realm keys and device secrets cannot be read)"
    )]
    Missing(PathBuf),
    /// The file does not hold a master key.
    #[error(
        "{0} does not hold a master key; put back the file that this data directory was made with"
    )]
    Malformed(PathBuf),
    /// The database was made with another key.
    #[error(
        "{0} holds another master key than the one that the database was made with; put that one \
         back (without it realm keys and device secrets cannot be read)"
    )]
    Foreign(PathBuf),
    /// The file cannot be read or written.
    #[error("the master key {path} cannot be {doing}")]
    Io {
        /// Which.
        path: PathBuf,
        /// `read` or `written`.
        doing: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The machine gives no random numbers.
    #[error("the machine gives no random numbers")]
    Random,
}

/// Why sealed bytes cannot be opened, or bytes sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// Sealed under another master key.
    #[error("was sealed under another master key")]
    WrongKey,
    /// Not what was sealed, or sealed under another label.
    #[error("is damaged")]
    Damaged,
    /// Sealed by a newer program.
    #[error("was sealed by a newer program")]
    Version,
    /// The machine gives no random numbers, or the plaintext is too long for one nonce.
    #[error("cannot be sealed")]
    CannotSeal,
}

/// The master key of an installation. Its `Debug` shows nothing of it.
pub struct MasterKey {
    extracted: hkdf::Prk,
    secrets: hmac::Key,
    check: [u8; CHECK_BYTES],
    random: SystemRandom,
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey([redacted])")
    }
}

impl MasterKey {
    /// Reads the key in `path`; makes one there (mode 0600, flushed to disk) when the file is
    /// missing and `creates` is set. Set it only while nothing has been sealed yet.
    ///
    /// # Errors
    /// When it is missing and must not be made, holds no key, or cannot be read or written.
    pub fn load_or_create(path: &Path, creates: bool) -> Result<Self, MasterKeyError> {
        match fs::File::open(path) {
            Ok(file) => Self::load(path, file),
            Err(error) if error.kind() == io::ErrorKind::NotFound && creates => Self::create(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(MasterKeyError::Missing(path.to_owned()))
            }
            Err(source) => Err(unreadable(path, source)),
        }
    }

    fn load(path: &Path, file: fs::File) -> Result<Self, MasterKeyError> {
        use io::Read as _;

        let mode = file
            .metadata()
            .map_err(|error| unreadable(path, error))?
            .permissions()
            .mode();
        if mode & 0o077 != 0 {
            tracing::warn!(
                path = %path.display(),
                mode = format_args!("{:o}", mode & 0o777),
                "the master key can be read by others; chmod it to 600"
            );
        }
        let mut text = Zeroizing::new(String::new());
        file.take(FILE_BYTES_MAX)
            .read_to_string(&mut text)
            .map_err(|error| unreadable(path, error))?;
        let malformed = || MasterKeyError::Malformed(path.to_owned());
        let encoded = text
            .trim()
            .strip_prefix(FILE_PREFIX)
            .ok_or_else(malformed)?;
        let bytes = Zeroizing::new(STANDARD.decode(encoded).map_err(|_| malformed())?);
        let key: Zeroizing<[u8; 32]> =
            Zeroizing::new(bytes.as_slice().try_into().map_err(|_| malformed())?);
        Ok(Self::from_bytes(&key))
    }

    fn create(path: &Path) -> Result<Self, MasterKeyError> {
        let key = Zeroizing::new(random_key()?);
        let text = Zeroizing::new(format!("{FILE_PREFIX}{}\n", STANDARD.encode(*key)));
        write_new(path, text.as_bytes()).map_err(|source| MasterKeyError::Io {
            path: path.to_owned(),
            doing: "written",
            source,
        })?;
        Ok(Self::from_bytes(&key))
    }

    /// From its 256 bits.
    #[must_use]
    pub fn from_bytes(key: &[u8; 32]) -> Self {
        let extracted = hkdf::Salt::new(hkdf::HKDF_SHA256, b"tanit master key v1").extract(key);
        let secrets = hmac::Key::new(hmac::HMAC_SHA256, &*derive(&extracted, "device secret"));
        let mut check = [0; CHECK_BYTES];
        check.copy_from_slice(&derive(&extracted, "check value")[..CHECK_BYTES]);
        Self {
            extracted,
            secrets,
            check,
            random: SystemRandom::new(),
        }
    }

    /// A key that lives as long as the process, for tests and embedding without a data directory.
    ///
    /// # Errors
    /// When the machine gives no random numbers.
    pub fn ephemeral() -> Result<Self, MasterKeyError> {
        Ok(Self::from_bytes(&Zeroizing::new(random_key()?)))
    }

    /// Tells keys apart without saying anything about them; 16 hexadecimal digits.
    #[must_use]
    pub fn check_value(&self) -> String {
        super::hex(&self.check)
    }

    /// Whether these bytes, made by [`MasterKey::seal`], say that they were sealed under this key.
    #[must_use]
    pub fn has_sealed(&self, sealed: &[u8]) -> bool {
        sealed.get(1..HEADER_BYTES) == Some(&self.check[..])
    }

    /// Encrypts `plaintext` under the key of `label`, which names the use and the object.
    ///
    /// # Errors
    /// `CannotSeal`, when the machine gives no random numbers.
    pub fn seal(&self, label: &str, plaintext: &[u8]) -> Result<Vec<u8>, SealError> {
        let mut nonce = [0; NONCE_LEN];
        self.random
            .fill(&mut nonce)
            .map_err(|_| SealError::CannotSeal)?;
        let mut body = Zeroizing::new(plaintext.to_vec());
        let tag = self
            .cipher(label)
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(label),
                &mut body,
            )
            .map_err(|_| SealError::CannotSeal)?;
        Ok([
            &[SEALED_VERSION],
            &self.check[..],
            &nonce,
            &body,
            tag.as_ref(),
        ]
        .concat())
    }

    /// Decrypts what [`MasterKey::seal`] made under the same label.
    ///
    /// # Errors
    /// `WrongKey` for another master key; `Damaged` for anything else that was not sealed so.
    pub fn open(&self, label: &str, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, SealError> {
        let (header, rest) = sealed
            .split_at_checked(HEADER_BYTES)
            .ok_or(SealError::Damaged)?;
        if header[0] != SEALED_VERSION {
            return Err(SealError::Version);
        }
        if header[1..] != self.check {
            return Err(SealError::WrongKey);
        }
        let (nonce, body) = rest
            .split_first_chunk::<NONCE_LEN>()
            .ok_or(SealError::Damaged)?;
        let mut body = Zeroizing::new(body.to_vec());
        let length = self
            .cipher(label)
            .open_in_place(
                Nonce::assume_unique_for_key(*nonce),
                Aad::from(label),
                &mut body,
            )
            .map_err(|_| SealError::Damaged)?
            .len();
        body.truncate(length);
        Ok(body)
    }

    /// What is stored of a device's secret.
    #[must_use]
    pub fn secret_hmac(&self, secret: &str) -> [u8; 32] {
        let mut stored = [0; 32];
        stored.copy_from_slice(hmac::sign(&self.secrets, secret.as_bytes()).as_ref());
        stored
    }

    /// Whether `secret` is the one that `stored` was made of; in constant time.
    #[must_use]
    pub fn verify_secret(&self, secret: &str, stored: &[u8; 32]) -> bool {
        hmac::verify(&self.secrets, secret.as_bytes(), stored).is_ok()
    }

    fn cipher(&self, label: &str) -> LessSafeKey {
        let key = derive(&self.extracted, label);
        let key = UnboundKey::new(&AES_256_GCM, &*key).expect("AES-256 keys have 32 bytes");
        LessSafeKey::new(key)
    }
}

/// HKDF-Expand to 32 bytes, with the label as info.
fn derive(extracted: &hkdf::Prk, label: &str) -> Zeroizing<[u8; 32]> {
    let mut key = Zeroizing::new([0; 32]);
    extracted
        .expand(&[label.as_bytes()], hkdf::HKDF_SHA256)
        .and_then(|expanded| expanded.fill(&mut *key))
        .expect("HKDF-SHA-256 expands to 32 bytes");
    key
}

fn random_key() -> Result<[u8; 32], MasterKeyError> {
    let mut key = [0; 32];
    SystemRandom::new()
        .fill(&mut key)
        .map_err(|_| MasterKeyError::Random)?;
    Ok(key)
}

fn unreadable(path: &Path, source: io::Error) -> MasterKeyError {
    MasterKeyError::Io {
        path: path.to_owned(),
        doing: "read",
        source,
    }
}

/// Makes a file that must not exist yet, mode 0600, and flushes it and its directory.
fn write_new(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(contents)?;
    file.sync_all()?;
    if let Some(directory) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        fs::File::open(directory)?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_read_afterwards() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("master.key");
        let sealed = MasterKey::load_or_create(&path, true)
            .unwrap()
            .seal("realm", b"secret")
            .unwrap();

        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let again = MasterKey::load_or_create(&path, true).unwrap();
        assert_eq!(again.open("realm", &sealed).unwrap().as_slice(), b"secret");
    }

    #[test]
    fn a_missing_or_foreign_file_is_refused_with_its_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("master.key");
        let missing = MasterKey::load_or_create(&path, false).unwrap_err();
        assert!(matches!(missing, MasterKeyError::Missing(_)));
        assert!(missing.to_string().contains("master.key"));
        assert!(
            !path.exists(),
            "a missing key was made although it must not be"
        );

        for contents in [
            "",
            "tanit-master-key-v1:AAAA",
            "-----BEGIN PRIVATE KEY-----",
            "\u{fffd}",
        ] {
            fs::write(&path, contents).unwrap();
            let refused = MasterKey::load_or_create(&path, true).unwrap_err();
            assert!(
                matches!(refused, MasterKeyError::Malformed(_)),
                "{contents:?} was taken"
            );
        }
    }

    #[test]
    fn sealed_bytes_open_under_the_same_key_and_label_only() {
        let key = MasterKey::ephemeral().unwrap();
        let sealed = key.seal("ca acme", b"plaintext").unwrap();
        assert_eq!(
            key.open("ca acme", &sealed).unwrap().as_slice(),
            b"plaintext"
        );
        assert_eq!(
            key.open("ca globex", &sealed).unwrap_err(),
            SealError::Damaged
        );
        assert_ne!(
            sealed,
            key.seal("ca acme", b"plaintext").unwrap(),
            "the nonce was repeated"
        );

        let other = MasterKey::ephemeral().unwrap();
        assert_eq!(
            other.open("ca acme", &sealed).unwrap_err(),
            SealError::WrongKey
        );
    }

    #[test]
    fn every_changed_or_missing_byte_is_noticed() {
        let key = MasterKey::ephemeral().unwrap();
        let sealed = key.seal("label", b"plaintext").unwrap();
        for index in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[index] ^= 0x40;
            assert!(
                key.open("label", &damaged).is_err(),
                "byte {index} may be changed"
            );
            assert!(
                key.open("label", &sealed[..index]).is_err(),
                "{index} bytes are enough"
            );
        }
    }

    #[test]
    fn a_secret_is_verified_by_its_hmac() {
        let key = MasterKey::ephemeral().unwrap();
        let stored = key.secret_hmac("c2VjcmV0");
        assert!(key.verify_secret("c2VjcmV0", &stored));
        assert!(!key.verify_secret("c2VjcmV1", &stored));
        assert!(!key.verify_secret("", &stored));
        assert!(
            !MasterKey::ephemeral()
                .unwrap()
                .verify_secret("c2VjcmV0", &stored)
        );
    }

    #[test]
    fn nothing_of_the_key_is_printed() {
        assert_eq!(
            format!("{:?}", MasterKey::from_bytes(&[7; 32])),
            "MasterKey([redacted])"
        );
    }
}
