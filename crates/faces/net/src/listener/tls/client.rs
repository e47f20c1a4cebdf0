//! Derives a client's identity from its certificate.

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// Names are truncated to this many characters: they are logged.
const MAX_LENGTH: usize = 256;

/// The encoded object identifier of a common name, 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// The tags of DER that occur in a subject.
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const IDENTIFIER: u8 = 0x06;
/// UTF8String, PrintableString and IA5String.
const TEXTS: [u8; 3] = [0x0c, 0x13, 0x16];

/// The name in a certificate that was verified: its first URI, as workloads have them, else the common name of its
/// subject, else its first name of a host. `None` if it has none of these.
pub(crate) fn name(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let name = certificate
        .valid_uri_names()
        .next()
        .or_else(|| common_name(certificate.subject()))
        .or_else(|| certificate.valid_dns_names().next())?;
    let printable =
        |character: char| if character.is_control() { char::REPLACEMENT_CHARACTER } else { character };
    Some(name.chars().take(MAX_LENGTH).map(printable).collect()).filter(|name: &String| !name.is_empty())
}

/// The common name in a subject: sets of pairs, each of an identifier and a text.
fn common_name(mut subject: &[u8]) -> Option<&str> {
    while let Some((SET, mut set, rest)) = element(subject) {
        while let Some((SEQUENCE, pair, rest)) = element(set) {
            let (_, identifier, value) = element(pair).filter(|(tag, ..)| *tag == IDENTIFIER)?;
            let (tag, text, _) = element(value)?;
            if identifier == COMMON_NAME && TEXTS.contains(&tag) {
                return std::str::from_utf8(text).ok();
            }
            set = rest;
        }
        subject = rest;
    }
    None
}

/// The tag and the contents of the first element, and what follows it. Lengths of more than two bytes do not occur.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, length], rest) = der.split_first_chunk::<2>()?;
    let (length, rest) = match (length, rest) {
        (0..=0x7f, rest) => (usize::from(length), rest),
        (0x81, [length, rest @ ..]) => (usize::from(*length), rest),
        (0x82, [high, low, rest @ ..]) => (usize::from(*high) << 8 | usize::from(*low), rest),
        _ => return None,
    };
    let (contents, rest) = rest.split_at_checked(length)?;
    Some((tag, contents, rest))
}

#[cfg(test)]
mod tests {
    use rcgen::string::Ia5String;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    /// A certificate with these common names, and these alternative ones.
    fn certificate(common: &[&str], others: Vec<SanType>) -> CertificateDer<'static> {
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "Example");
        for name in common {
            params.distinguished_name.push(DnType::CommonName, *name);
        }
        params.subject_alt_names = others;
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    fn text(text: &str) -> Ia5String {
        text.try_into().unwrap()
    }

    #[test]
    fn client_has_the_first_name_of_its_certificate() {
        let long = "x".repeat(1000);
        let host = || SanType::DnsName(text("host.example"));
        let workload = || SanType::URI(text("spiffe://example/team/client"));
        let mail = || SanType::Rfc822Name(text("me@example.com"));
        for (common, others, expected) in [
            (vec!["client"], vec![], Some("client")),
            (vec!["Jürgen \u{4e00}"], vec![host()], Some("Jürgen \u{4e00}")),
            (vec!["client"], vec![mail(), host(), workload()], Some("spiffe://example/team/client")),
            (vec![], vec![mail(), host()], Some("host.example")),
            (vec![], vec![mail()], None),
            (vec![""], vec![], None),
            (vec!["a\nb\u{1b}[1m"], vec![], Some("a\u{fffd}b\u{fffd}[1m")),
            (vec![long.as_str()], vec![], Some(&long[..MAX_LENGTH])),
        ] {
            assert_eq!(name(&certificate(&common, others)).as_deref(), expected, "{common:?}");
        }
    }

    #[test]
    fn malformed_subjects_have_no_name() {
        let whole = certificate(&["client"], vec![]);
        let subject = EndEntityCert::try_from(&whole).unwrap().subject().to_vec();
        assert_eq!(common_name(&subject), Some("client"));
        for length in 0..subject.len() {
            assert_eq!(common_name(&subject[..length]), None);
        }
        for at in 0..subject.len() {
            for value in 0..=u8::MAX {
                let mut damaged = subject.clone();
                damaged[at] = value;
                common_name(&damaged);
            }
        }
    }
}
