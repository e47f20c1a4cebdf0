//! How far a network address reaches: this machine, its link, a private network, or everywhere.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The reach of an address, from the narrowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Loopback addresses.
    Machine,
    /// Link-local and multicast addresses, such as the metadata services of clouds.
    Link,
    /// Addresses that are not routed on the Internet.
    Private,
    /// All others.
    Public,
}

impl Reach {
    /// The reach of an address. An IPv6 address that embeds an IPv4 address has the reach of the latter.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => of_v4(address),
            IpAddr::V6(address) => of_v6(address),
        }
    }

    /// The reach of a URL's host if it is known without asking a name server: an address in any form that resolvers
    /// accept, or a name of this machine.
    pub(crate) fn of_host(host: &str) -> Option<Self> {
        let host = host.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase();
        if host == "localhost" || host.ends_with(".localhost") {
            return Some(Self::Machine);
        }
        let address = host.parse().ok().or_else(|| Some(IpAddr::V4(legacy_v4(&host)?)));
        address.map(Self::of)
    }

    /// The name of such an address in messages.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Machine => "a loopback address",
            Self::Link => "a link-local address",
            Self::Private => "a private address",
            Self::Public => "a public address",
        }
    }
}

fn of_v4(address: Ipv4Addr) -> Reach {
    match address.octets() {
        [0 | 127, ..] => Reach::Machine,
        [169, 254, ..] | [224..=239, ..] | [255, 255, 255, 255] => Reach::Link,
        // RFC 1918, carrier-grade NAT, protocol assignments, benchmarks, documentation and reserved addresses.
        [10, ..]
        | [172, 16..=31, ..]
        | [192, 168, ..]
        | [100, 64..=127, ..]
        | [192, 0, 0 | 2, _]
        | [198, 18 | 19, ..]
        | [198, 51, 100, _]
        | [203, 0, 113, _]
        | [240..=255, ..] => Reach::Private,
        _ => Reach::Public,
    }
}

fn of_v6(address: Ipv6Addr) -> Reach {
    let embedded = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        of_v4(Ipv4Addr::new(a, b, c, d))
    };
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => Reach::Machine,
        // Mapped, translated and compatible IPv4 addresses, NAT64 and 6to4.
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => embedded(high, low),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => embedded(high, low),
        [0xfe80..=0xfebf, ..] | [0xff00..=0xffff, ..] => Reach::Link,
        // Unique local, site-local, local NAT64, Teredo, discard and documentation addresses.
        [0xfc00..=0xfdff, ..]
        | [0xfec0..=0xfeff, ..]
        | [0x64, 0xff9b, 1, ..]
        | [0x2001, 0 | 0xdb8, ..]
        | [0x100, 0, 0, 0, ..]
        | [0x3fff, 0..=0xfff, ..] => Reach::Private,
        _ => Reach::Public,
    }
}

/// An IPv4 address in the forms of `inet_aton`: one to four numbers, decimal, octal or hexadecimal.
fn legacy_v4(host: &str) -> Option<Ipv4Addr> {
    let number = |part: &str| match part.strip_prefix("0x") {
        Some("") => Some(0),
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None if part.len() > 1 && part.starts_with('0') => u32::from_str_radix(part, 8).ok(),
        None => part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok())?,
    };
    let parts: Vec<_> = host.split('.').map(number).collect::<Option<_>>()?;
    let (last, first) = parts.split_last().filter(|(_, first)| first.len() <= 3)?;
    let mut address = 0;
    for (index, part) in first.iter().enumerate() {
        address |= u8::try_from(*part).map(u32::from).ok()? << (24 - 8 * index);
    }
    let is_short = first.is_empty() || last.checked_shr(32 - 8 * first.len() as u32).unwrap_or(0) == 0;
    is_short.then(|| Ipv4Addr::from(address | last))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reach_of_a_host_is_that_of_its_address_in_any_form() {
        use Reach::{Link, Machine, Private, Public};
        for (host, expected) in [
            ("127.0.0.1", Some(Machine)),
            ("127.255.1.2", Some(Machine)),
            ("0.0.0.0", Some(Machine)),
            ("localhost", Some(Machine)),
            ("LOCALHOST.", Some(Machine)),
            ("a.localhost", Some(Machine)),
            ("[::1]", Some(Machine)),
            ("[::]", Some(Machine)),
            ("2130706433", Some(Machine)),
            ("0x7f000001", Some(Machine)),
            ("0x7f.1", Some(Machine)),
            ("017700000001", Some(Machine)),
            ("127.1", Some(Machine)),
            ("[::ffff:127.0.0.1]", Some(Machine)),
            ("[::7f00:1]", Some(Machine)),
            ("169.254.169.254", Some(Link)),
            ("2852039166", Some(Link)),
            ("0xa9fea9fe", Some(Link)),
            ("[::ffff:169.254.169.254]", Some(Link)),
            ("[64:ff9b::a9fe:a9fe]", Some(Link)),
            ("[2002:a9fe:a9fe::1]", Some(Link)),
            ("[fe80::1]", Some(Link)),
            ("[ff02::1]", Some(Link)),
            ("224.0.0.1", Some(Link)),
            ("10.1.2.3", Some(Private)),
            ("172.16.0.1", Some(Private)),
            ("172.31.255.255", Some(Private)),
            ("192.168.1.1", Some(Private)),
            ("100.64.0.1", Some(Private)),
            ("198.18.0.1", Some(Private)),
            ("240.0.0.1", Some(Private)),
            ("012.1.2.3", Some(Private)),
            ("[fd00::1]", Some(Private)),
            ("[fec0::1]", Some(Private)),
            ("[::ffff:10.0.0.1]", Some(Private)),
            ("[2001:db8::1]", Some(Private)),
            ("8.8.8.8", Some(Public)),
            ("172.32.0.1", Some(Public)),
            ("100.128.0.1", Some(Public)),
            ("134744072", Some(Public)),
            ("[2606:4700::1]", Some(Public)),
            ("[::ffff:8.8.8.8]", Some(Public)),
            ("example.com", None),
            ("256.1.1.1", None),
            ("1.2.3.4.5", None),
            ("127.0.0.08", None),
            ("", None),
        ] {
            assert_eq!(Reach::of_host(host), expected, "{host}");
        }
    }

    proptest! {
        /// No form of an address hides its reach.
        #[test]
        fn reach_does_not_depend_on_the_form_of_an_address(number in any::<u32>()) {
            let address = Ipv4Addr::from(number);
            let [a, b, c, d] = address.octets();
            let expected = Some(Reach::of(IpAddr::V4(address)));
            for host in [
                address.to_string(),
                number.to_string(),
                format!("{number:#x}"),
                format!("0{number:o}"),
                format!("{a:#x}.{b}.0{c:o}.{d}"),
                format!("{a}.{}", number & 0xff_ffff),
                format!("{a}.{b}.{}", number & 0xffff),
                format!("[{}]", address.to_ipv6_mapped()),
                format!("[64:ff9b::{:x}:{:x}]", number >> 16, number & 0xffff),
                format!("[2002:{:x}:{:x}::1]", number >> 16, number & 0xffff),
            ] {
                prop_assert_eq!(Reach::of_host(&host), expected, "{}", host);
            }
        }
    }
}
