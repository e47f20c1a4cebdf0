//! Digests of whole objects in the headers of stores' answers.
//!
//! Each store has its own headers, some of which cover only a part. Of several digests, the fastest to compute is used:
//! digests guard against damage, not against those who can write to the store.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::StatusCode;
use hyper::header::HeaderMap;
use nereid_http_client::ResponseHeaders;

use crate::digests::{Algorithm, ExpectedDigest, hex};

/// Asks S3 for the digest that was given at upload.
pub(crate) const ASK_S3: (&str, &str) = ("x-amz-checksum-mode", "ENABLED");

/// S3's headers, the fastest digests first.
const OF_S3: [(&str, Algorithm); 5] = [
    ("x-amz-checksum-crc64nvme", Algorithm::Crc64Nvme),
    ("x-amz-checksum-crc32c", Algorithm::Crc32c),
    ("x-amz-checksum-crc32", Algorithm::Crc32),
    ("x-amz-checksum-sha256", Algorithm::Sha256),
    ("x-amz-checksum-sha1", Algorithm::Sha1),
];

/// The digest of a whole object, from an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OfferedDigest(pub ExpectedDigest);

impl OfferedDigest {
    /// The digest in the answer that a result of the library comes from, if there is one.
    pub(crate) fn in_extensions(extensions: &hyper::http::Extensions) -> Option<Self> {
        let answer = extensions.get::<ResponseHeaders>()?;
        Self::of(&answer.headers, answer.status)
    }

    /// The digest in an answer's headers, if there is one.
    fn of(headers: &HeaderMap, status: StatusCode) -> Option<Self> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        // S3 sends the digest of a part, if any, with a part of an object.
        let is_whole = status == StatusCode::OK;
        if is_whole && text("x-amz-checksum-type").is_none_or(|kind| kind != "COMPOSITE") {
            let of_s3 = OF_S3.iter().find_map(|(name, algorithm)| Self::parse(*algorithm, text(name)?));
            if of_s3.is_some() {
                return of_s3;
            }
        }
        // Google's cover the stored bytes, which it may decompress on the way.
        if text("x-goog-stored-content-encoding").is_none_or(|encoding| encoding == "identity") {
            let hashes = headers.get_all("x-goog-hash").iter().filter_map(|value| value.to_str().ok());
            let hashes: Vec<_> = hashes.flat_map(|value| value.split(',')).map(str::trim).collect();
            let find = |prefix: &str| hashes.iter().find_map(|hash| hash.strip_prefix(prefix));
            let of_google = find("crc32c=")
                .and_then(|digest| Self::parse(Algorithm::Crc32c, digest))
                .or_else(|| Self::parse(Algorithm::Md5, find("md5=")?));
            if of_google.is_some() {
                return of_google;
            }
        }
        // Azure's header in answers with a range and without.
        let md5 = text("x-ms-blob-content-md5").or_else(|| text("content-md5").filter(|_| is_whole));
        Self::parse(Algorithm::Md5, md5?)
    }

    fn parse(algorithm: Algorithm, digest: &str) -> Option<Self> {
        // Digests of parts' digests end with the number of parts, after a character that base64 lacks.
        let digest = STANDARD.decode(digest).ok()?;
        let is_whole = digest.len() == algorithm.length();
        is_whole.then(|| Self(ExpectedDigest { algorithm, hex: hex(&digest), is_certain: true }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_offer_digests_in_their_own_ways() {
        let md5 = "kAFQmDzST7DWlj99KOF/cg==";
        let md5 = |status: u16, name| (status, vec![(name, md5)], Some(Algorithm::Md5));
        let crc64 = ("x-amz-checksum-crc64nvme", "rosUhgp5mIg=");
        let crc32c = ("x-amz-checksum-crc32c", "4waSgw==");
        let crc32 = ("x-amz-checksum-crc32", "y/Q5Jg==");
        let sha1 = ("x-amz-checksum-sha1", "98O8HYCOBHMq32eZZczDTKeuNEE=");
        let sha256 = ("x-amz-checksum-sha256", "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=");
        for (status, headers, expected) in [
            md5(200, "content-md5"),
            md5(206, "x-ms-blob-content-md5"),
            // The digest of a part.
            (206, md5(206, "content-md5").1, None),
            (
                206,
                vec![("x-goog-hash", "crc32c=4waSgw=="), ("x-goog-hash", "md5=AA==")],
                Some(Algorithm::Crc32c),
            ),
            (
                200,
                vec![("x-goog-hash", "crc32c=4waSgw==, md5=kAFQmDzST7DWlj99KOF/cg==")],
                Some(Algorithm::Crc32c),
            ),
            (200, vec![("x-goog-hash", "md5=kAFQmDzST7DWlj99KOF/cg==")], Some(Algorithm::Md5)),
            (
                200,
                vec![("x-goog-hash", "crc32c=4waSgw=="), ("x-goog-stored-content-encoding", "identity")],
                Some(Algorithm::Crc32c),
            ),
            (200, vec![("x-goog-hash", "crc32c=4waSgw=="), ("x-goog-stored-content-encoding", "gzip")], None),
            (200, vec![crc64], Some(Algorithm::Crc64Nvme)),
            (200, vec![crc32c], Some(Algorithm::Crc32c)),
            (200, vec![crc32], Some(Algorithm::Crc32)),
            (200, vec![sha1], Some(Algorithm::Sha1)),
            (200, vec![sha256], Some(Algorithm::Sha256)),
            (200, vec![sha1, crc64, ("x-amz-checksum-type", "FULL_OBJECT")], Some(Algorithm::Crc64Nvme)),
            // Derived from the digests of parts.
            (200, vec![crc32c, ("x-amz-checksum-type", "COMPOSITE")], None),
            (200, vec![("x-amz-checksum-crc32c", "4waSgw==-3")], None),
            (206, vec![crc64], None),
            (200, vec![("content-md5", "AAAA")], None),
            (200, vec![("content-md5", "?")], None),
            (200, vec![("x-amz-checksum-sha256", "4waSgw==")], None),
            (200, vec![], None),
        ] {
            let mut map = HeaderMap::new();
            for (name, value) in &headers {
                map.append(*name, value.parse().unwrap());
            }
            let offered = OfferedDigest::of(&map, StatusCode::from_u16(status).unwrap());
            let algorithm = offered.as_ref().map(|offered| offered.0.algorithm);
            assert_eq!(algorithm, expected, "{status} {headers:?}");
            assert!(offered.is_none_or(|offered| offered.0.is_certain));
        }
    }
}
