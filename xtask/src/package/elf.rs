//! Properties of a built file that packages depend on: its processor architecture, and the oldest C library that it runs with.

use std::path::Path;

use anyhow::{Context as _, Result, bail};

/// The oldest glibc 2 that tags of wheels name.
pub const OLDEST_GLIBC: u32 = 17;

/// A processor architecture that packages are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    X86_64,
    Aarch64,
}

impl Machine {
    /// Reads the header of an ELF file.
    pub fn of(file: &[u8]) -> Result<Self> {
        if !file.starts_with(b"\x7fELF\x02\x01") {
            bail!("not a 64-bit little-endian ELF file");
        }
        match file.get(18..20) {
            Some([62, 0]) => Ok(Self::X86_64),
            Some([183, 0]) => Ok(Self::Aarch64),
            _ => bail!("built for an architecture that has no packages (x86-64 and AArch64 have)"),
        }
    }

    /// As rustc names the platform.
    pub fn target(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-linux-gnu",
            Self::Aarch64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// As archives name the platform.
    pub fn platform(self) -> &'static str {
        match self {
            Self::X86_64 => "linux-x86_64",
            Self::Aarch64 => "linux-aarch64",
        }
    }

    /// As Debian and images name the architecture.
    pub fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }
}

/// A built program.
#[derive(Clone, Debug)]
pub struct Program {
    pub bytes: Vec<u8>,
    pub machine: Machine,
}

impl Program {
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let machine = Machine::of(&bytes).with_context(|| path.display().to_string())?;
        Ok(Self { bytes, machine })
    }

    /// The newest glibc 2 that it needs.
    pub fn glibc(&self) -> u32 {
        newest_glibc(&self.bytes)
    }
}

/// The newest glibc 2 that a file requires, by the versions of its symbols; at least 17.
pub fn newest_glibc(file: &[u8]) -> u32 {
    let name = b"GLIBC_2.";
    let after = file.windows(name.len()).enumerate().filter(|(_, found)| found == name);
    let number = |at: usize| {
        let digits = file[at + name.len()..].iter().take_while(|byte| byte.is_ascii_digit());
        digits.fold(0_u32, |number, digit| number.saturating_mul(10).saturating_add(u32::from(digit - b'0')))
    };
    after.map(|(at, _)| number(at)).filter(|number| *number < 100).fold(OLDEST_GLIBC, u32::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_glibc_is_found_among_all() {
        for (file, expected) in [
            (&b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.17\0"[..], 34),
            (b"GLIBC_2.3.4", 17),
            (b"GLIBC_PRIVATE GLIBC_2. GLIBC_2", 17),
            (b"", 17),
            (b"GLIBC_2.39", 39),
            (b"GLIBC_2.99999999999", 17),
        ] {
            assert_eq!(newest_glibc(file), expected, "{}", String::from_utf8_lossy(file));
        }
    }

    #[test]
    fn the_machine_is_read_from_the_header() {
        let header = |machine: u16| {
            let mut header = b"\x7fELF\x02\x01".to_vec();
            header.resize(18, 0);
            header.extend(machine.to_le_bytes());
            header
        };
        assert_eq!(Machine::of(&header(62)).unwrap(), Machine::X86_64);
        assert_eq!(Machine::of(&header(183)).unwrap(), Machine::Aarch64);
        for other in
            [header(3), header(0), header(62)[..19].to_vec(), b"\x7fELF\x01\x01".to_vec(), Vec::new()]
        {
            Machine::of(&other).unwrap_err();
        }
        let own = Program::read(&std::env::current_exe().unwrap()).unwrap();
        assert!(own.machine.target().starts_with(std::env::consts::ARCH));
        assert!(own.glibc() >= OLDEST_GLIBC);
    }
}
