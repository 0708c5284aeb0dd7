//! The data types of the standard (1.5), read strictly from a packet.

use super::Violation;
use crate::mqtt::packet::PacketId;

/// The part of a packet that is not yet read.
#[derive(Clone, Debug)]
pub(super) struct Reader<'p> {
    /// What is left.
    rest: &'p [u8],
    /// The offset of `rest` in the packet.
    position: usize,
}

impl<'p> Reader<'p> {
    /// Reads `bytes`, which begin at `position` in their packet.
    pub(super) const fn new(bytes: &'p [u8], position: usize) -> Self {
        Self {
            rest: bytes,
            position,
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) const fn len(&self) -> usize {
        self.rest.len()
    }

    /// The offset in the packet of the next byte.
    pub(super) const fn position(&self) -> usize {
        self.position
    }

    /// The packet must end here.
    pub(super) const fn finish(&self) -> Result<(), Violation> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Violation::TrailingBytes)
        }
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'p [u8], Violation> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or(Violation::Truncated)?;
        self.rest = rest;
        self.position += count;
        Ok(taken)
    }

    /// The next `count` bytes as a reader of their own.
    pub(super) fn part(&mut self, count: usize) -> Result<Self, Violation> {
        let position = self.position;
        Ok(Self::new(self.take(count)?, position))
    }

    pub(super) fn u8(&mut self) -> Result<u8, Violation> {
        Ok(self.take(1)?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, Violation> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    pub(super) fn u32(&mut self) -> Result<u32, Violation> {
        let bytes = self.take(4)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// A packet identifier, which is not 0 [MQTT-2.3.1-1].
    pub(super) fn packet_id(&mut self) -> Result<PacketId, Violation> {
        PacketId::new(self.u16()?).ok_or(Violation::PacketIdZero)
    }

    /// A variable byte integer.
    pub(super) fn variable(&mut self) -> Result<u32, Violation> {
        match variable_length(self.rest)? {
            Some((value, size)) => {
                self.take(size)?;
                Ok(value)
            }
            None => Err(Violation::Truncated),
        }
    }

    /// Binary data with its two bytes of length.
    pub(super) fn binary(&mut self) -> Result<&'p [u8], Violation> {
        let length = self.u16()?;
        self.take(length.into())
    }

    /// Text: UTF-8 [MQTT-1.5.3-1] without U+0000 [MQTT-1.5.3-2]. Other control characters and
    /// non-characters, which the standard only advises against, pass.
    pub(super) fn text(&mut self) -> Result<&'p str, Violation> {
        let text = str::from_utf8(self.binary()?).map_err(|_| Violation::Utf8)?;
        if text.contains('\0') {
            Err(Violation::NullCharacter)
        } else {
            Ok(text)
        }
    }
}

/// A variable byte integer at the head of `bytes` with its size; `None` if they end inside it.
///
/// Of more than one form of a number only the shortest is accepted, in both versions.
pub(super) fn variable_length(bytes: &[u8]) -> Result<Option<(u32, usize)>, Violation> {
    let mut value = 0;
    for (index, byte) in bytes.iter().take(4).enumerate() {
        value |= u32::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            let overlong = index > 0 && *byte == 0;
            return if overlong {
                Err(Violation::LengthOverlong)
            } else {
                Ok(Some((value, index + 1)))
            };
        }
    }
    if bytes.len() < 4 {
        Ok(None)
    } else {
        Err(Violation::LengthMalformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fc_057_lengths_have_at_most_four_bytes_and_one_form() {
        for (bytes, value) in [
            (&[0x00][..], 0),
            (&[0x7F], 127),
            (&[0x80, 0x01], 128),
            (&[0xFF, 0x7F], 16_383),
            (&[0x80, 0x80, 0x01], 16_384),
            (&[0xFF, 0xFF, 0xFF, 0x7F], 268_435_455),
        ] {
            assert_eq!(variable_length(bytes), Ok(Some((value, bytes.len()))));
        }
        for incomplete in [&[][..], &[0x80], &[0xFF, 0xFF, 0xFF]] {
            assert_eq!(variable_length(incomplete), Ok(None));
        }
        for malformed in [&[0xFF; 4][..], &[0x80, 0x80, 0x80, 0x80, 0x01], &[0xFF; 5]] {
            assert_eq!(variable_length(malformed), Err(Violation::LengthMalformed));
        }
        for overlong in [
            &[0x80, 0x00][..],
            &[0x81, 0x80, 0x00],
            &[0xFF, 0xFF, 0xFF, 0x00],
        ] {
            assert_eq!(variable_length(overlong), Err(Violation::LengthOverlong));
        }
    }
}
