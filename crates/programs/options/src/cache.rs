//! The options of the response cache.

use std::path::PathBuf;

use super::values::byte_size;
use clap::{ArgAction, Args};
use nereid_assembly::CacheConfig;

/// The options of the response cache.
#[derive(Debug, Args)]
#[command(next_help_heading = "Response cache")]
pub(crate) struct CacheOptions {
    /// Setting of the response cache: local,size=BYTES for one in memory; redis,host=NAME and redis,port=NUMBER for one in
    /// Redis; other names select a cache built for Triton. May be given several times, for one cache.
    #[arg(long, value_name = "CACHE,SETTING=VALUE", value_parser = setting, action = ArgAction::Append)]
    cache_config: Vec<CacheSetting>,

    /// Folder with a subfolder for each installed cache.
    #[arg(long, value_name = "PATH")]
    cache_directory: Option<PathBuf>,

    /// Deprecated: --cache-config=local,size=BYTES.
    #[arg(long, value_name = "BYTES", value_parser = byte_size())]
    response_cache_byte_size: Option<u64>,
}

/// One `--cache-config`.
#[derive(Clone, Debug)]
struct CacheSetting {
    cache: String,
    name: String,
    value: String,
}

impl CacheOptions {
    /// The cache that they describe, if any.
    pub(super) fn cache(&self) -> Option<CacheConfig> {
        let of_size = self.response_cache_byte_size.map(|size| CacheSetting {
            cache: "local".to_owned(),
            name: "size".to_owned(),
            value: size.to_string(),
        });
        let settings: Vec<_> = self.cache_config.iter().cloned().chain(of_size).collect();
        let name = settings.first()?.cache.clone();
        Some(CacheConfig {
            name,
            settings: settings.into_iter().map(|setting| (setting.name, setting.value)).collect(),
            directory: self.cache_directory.clone(),
        })
    }

    /// A conflict between options.
    pub(super) fn contradiction(&self) -> Option<&'static str> {
        let mut caches = self.cache_config.iter().map(|setting| &setting.cache);
        let first = caches.next();
        if first.is_some() && self.response_cache_byte_size.is_some() {
            Some(
                "--response-cache-byte-size and --cache-config=local,size=BYTES are the same option; set only one of them",
            )
        } else if caches.any(|cache| Some(cache) != first) {
            Some("--cache-config names several caches; a server has one")
        } else {
            None
        }
    }

    /// Warnings about given options that are deprecated or have no effect.
    pub(super) fn advice(&self) -> impl Iterator<Item = &'static str> {
        let deprecated = self
            .response_cache_byte_size
            .map(|_| "--response-cache-byte-size has been deprecated: use --cache-config=local,size=BYTES");
        let unused = (self.cache_directory.is_some() && self.cache().is_none())
            .then_some("--cache-directory has no effect without --cache-config");
        deprecated.into_iter().chain(unused)
    }
}

/// Triton's form: the cache up to the first comma, the setting up to the next equals sign, and the value.
fn setting(text: &str) -> Result<CacheSetting, String> {
    match text.split_once(',').and_then(|(cache, rest)| Some((cache, rest.split_once('=')?))) {
        Some((cache, (name, value))) if ![cache, name, value].contains(&"") => {
            Ok(CacheSetting { cache: cache.to_owned(), name: name.to_owned(), value: value.to_owned() })
        }
        _ => Err("must be CACHE,SETTING=VALUE, such as local,size=1048576".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        cache: CacheOptions,
    }

    fn parsed(arguments: &[&str]) -> Result<CacheOptions, clap::Error> {
        Line::try_parse_from([&["nereid"], arguments].concat()).map(|line| line.cache)
    }

    #[test]
    fn options_become_a_cache_and_its_settings() {
        type Settings<'a> = &'a [(&'a str, &'a str)];
        type Case<'a> = (&'a [&'a str], Option<(&'a str, Settings<'a>)>, usize);
        let cases: [Case<'_>; 6] = [
            (&[], None, 0),
            (&["--cache-directory=/opt/tritonserver/caches"], None, 1),
            (&["--response-cache-byte-size=1048576"], Some(("local", &[("size", "1048576")])), 1),
            (
                &["--cache-config=local,size=1048576", "--cache-config=local,x=a,b=c"],
                Some(("local", &[("size", "1048576"), ("x", "a,b=c")])),
                0,
            ),
            (&["--cache-config=redis,host=a", "--cache-directory=b"], Some(("redis", &[("host", "a")])), 0),
            (
                &["--cache-config=local,size=1", "--cache-config=local,size=2"],
                Some(("local", &[("size", "1"), ("size", "2")])),
                0,
            ),
        ];
        for (arguments, expected, advice) in cases {
            let options = parsed(arguments).unwrap();
            assert_eq!(options.contradiction(), None, "{arguments:?}");
            assert_eq!(options.advice().count(), advice, "{arguments:?}");
            let cache = options.cache();
            let found = cache.as_ref().map(|cache| {
                let settings: Vec<_> =
                    cache.settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                (cache.name.as_str(), settings)
            });
            assert_eq!(found, expected.map(|(name, settings)| (name, settings.to_vec())), "{arguments:?}");
        }
    }

    #[test]
    fn cache_options_refused_by_the_reference_are_refused() {
        for text in ["local", "local,size", ",size=1", "size=1", "local,=1", "local,size="] {
            assert!(parsed(&[&format!("--cache-config={text}")]).is_err(), "{text}");
        }
        for text in ["x", "-1", ""] {
            assert!(parsed(&[&format!("--response-cache-byte-size={text}")]).is_err(), "{text}");
        }
        for arguments in [
            ["--response-cache-byte-size=1", "--cache-config=local,size=1"],
            ["--cache-config=local,size=1", "--cache-config=redis,host=a"],
        ] {
            assert!(parsed(&arguments).unwrap().contradiction().is_some(), "{arguments:?}");
        }
    }
}
