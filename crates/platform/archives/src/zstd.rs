//! Decompresses zstd.
//!
//! The decoder handles a single frame. Files may have any number of frames, including skippable ones: tools that fetch
//! layers in parts write both.

use std::io::{self, BufRead, BufReader, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// All frames, decompressed in sequence.
pub(crate) struct Zstd<R> {
    source: BufReader<R>,
    /// Keeps the part of a frame that later blocks refer to. Refuses frames that need over 128 MiB.
    decoder: FrameDecoder,
    is_in_frame: bool,
}

impl<R: Read> Zstd<R> {
    pub(crate) fn new(source: R) -> Self {
        Self {
            source: BufReader::with_capacity(1 << 16, source),
            decoder: FrameDecoder::new(),
            is_in_frame: false,
        }
    }

    /// Advances to the next frame that is not skippable; returns `false` at the end.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => {
                    self.is_in_frame = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    let skipped = io::copy(&mut self.source.by_ref().take(length), &mut io::sink())?;
                    if skipped < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }
}

impl<R: Read> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.is_in_frame && !self.next_frame()? {
                return Ok(0);
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.source, one).map_err(io::Error::other)?;
            }
            let length = self.decoder.read(buffer)?;
            if length > 0 || buffer.is_empty() {
                return Ok(length);
            }
            let written = self.decoder.get_checksum_from_data();
            if written.is_some_and(|written| self.decoder.get_calculated_checksum() != Some(written)) {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the checksum of a zstd frame is wrong",
                ));
            }
            self.is_in_frame = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn frame(contents: &[u8]) -> Vec<u8> {
        compress_to_vec(contents, CompressionLevel::Fastest)
    }

    /// A skippable frame.
    fn skipped(length: u32) -> Vec<u8> {
        let head = [0x184D_2A53_u32.to_le_bytes(), length.to_le_bytes()].concat();
        [head, vec![7; length as usize]].concat()
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut contents = Vec::new();
        Zstd::new(bytes).read_to_end(&mut contents)?;
        Ok(contents)
    }

    #[test]
    fn frames_follow_each_other() {
        let long = vec![b'x'; 300_000];
        let all = [skipped(9), frame(b"ab"), frame(b""), skipped(0), frame(&long), skipped(100_000)].concat();
        assert_eq!(read(&all).unwrap(), [b"ab", long.as_slice()].concat());
        assert_eq!(read(b"").unwrap(), b"");
        // Truncated anywhere except between two frames.
        for end in [1, 5, 16, 20, all.len() - 1] {
            assert!(read(&all[..end]).is_err(), "{end}");
        }
        assert!(read(&[frame(b"ab"), b"no frame".to_vec()].concat()).is_err());
    }

    #[test]
    fn archive_of_the_reference_program_is_read() {
        // `zstd -19`
        let frame = [
            0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x68, 0xdd, 0x00, 0x00, 0x78, 0x6d, 0x6f, 0x64, 0x65, 0x6c, 0x73,
            0x20, 0x61, 0x6e, 0x64, 0x20, 0x6f, 0x66, 0x2c, 0x20, 0x03, 0x00, 0x24, 0x80, 0xaa, 0xb8, 0x25,
            0x63, 0x67, 0xc5, 0x0b, 0xe6, 0x4a, 0xee, 0xe0,
        ];
        assert_eq!(read(&frame).unwrap(), b"models and models of models, ".repeat(20));
    }

    #[test]
    fn a_wrong_checksum_is_noticed() {
        let good = frame(b"some contents");
        let mut bad = good.clone();
        *bad.last_mut().unwrap() ^= 1;
        assert_eq!(read(&good).unwrap(), b"some contents");
        assert!(read(&bad).unwrap_err().to_string().contains("checksum"));
    }

    proptest! {
        #[test]
        fn compressed_contents_round_trip(parts in vec(vec(0_u8..9, 0..5000), 0..5)) {
            let frames: Vec<_> = parts.iter().flat_map(|part| frame(part)).collect();
            prop_assert_eq!(read(&frames).unwrap(), parts.concat());
        }

        #[test]
        fn no_bytes_panic(mut bytes in vec(any::<u8>(), 0..300), at in 0_usize..300) {
            let _ = read(&bytes);
            bytes.splice(0..0, frame(b"something to begin with").into_iter().take(at));
            let _ = read(&bytes);
        }
    }
}
