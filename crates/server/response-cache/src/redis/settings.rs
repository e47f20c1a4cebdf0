//! The settings of the Redis cache: Triton's, and a time to live.

use std::env;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::settings::{CacheSettings, SettingsError, wrong};

const CACHE: &str = "redis";

/// Environment variables with the user's credentials, which override the settings.
const USER: &str = "TRITONCACHE_REDIS_USERNAME";
const PASSWORD: &str = "TRITONCACHE_REDIS_PASSWORD";

/// Default time limit of an answer.
const SOCKET_TIMEOUT: Duration = Duration::from_millis(100);

/// Default time limit of connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The most connections.
const MAX_POOL: u64 = 64;

/// Address of the Redis server, and how to use it.
#[derive(Clone)]
pub struct RedisSettings {
    /// The host name.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The user's name, if not the default one.
    pub user: Option<String>,
    /// The password, if any.
    pub password: Option<String>,
    /// The number of the database.
    pub db: u64,
    /// Time limit of connecting.
    pub connect_timeout: Duration,
    /// Time limit of a lookup, after which the request is executed.
    pub socket_timeout: Duration,
    /// Number of connections.
    pub pool_size: usize,
    /// After which time entries are dropped, if ever.
    pub ttl: Option<Duration>,
    /// TLS settings; `None` for plain connections.
    pub tls: Option<TlsSettings>,
}

/// TLS settings of the connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSettings {
    /// The certificate to show, with its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The file of certificates to trust; without it and the folder, those that this machine trusts.
    pub cacert: Option<PathBuf>,
    /// Folder with CA certificates.
    pub cacert_dir: Option<PathBuf>,
    /// The name that Redis's certificate must be for, if not the host.
    pub sni: Option<String>,
}

impl RedisSettings {
    /// Reads the settings from the command line and the environment.
    ///
    /// # Errors
    /// A setting is missing or invalid.
    pub fn read(settings: &mut CacheSettings) -> Result<Self, SettingsError> {
        Self::with_environment(settings, |name| env::var(name).ok())
    }

    fn with_environment(
        settings: &mut CacheSettings,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, SettingsError> {
        let missing = |setting| SettingsError::Missing { cache: CACHE, setting };
        let host = settings.take("host").ok_or_else(|| missing("host"))?;
        let port = settings.number(CACHE, "port")?.ok_or_else(|| missing("port"))?;
        let port = u16::try_from(port).ok().filter(|port| *port > 0);
        let port = port.ok_or_else(|| wrong(CACHE, "port", "out of range".into(), "a port"))?;
        let mut millis = |setting, default| -> Result<Duration, SettingsError> {
            // In Triton, 0 means no limit; lookups here need one, so the default applies.
            let given = settings.number(CACHE, setting)?.filter(|millis| *millis > 0);
            Ok(given.map_or(default, Duration::from_millis))
        };
        let connect_timeout = millis("connect_timeout", CONNECT_TIMEOUT)?;
        let socket_timeout = millis("socket_timeout", SOCKET_TIMEOUT)?;
        let pool_size = settings.number(CACHE, "pool_size")?.unwrap_or(1);
        // Requests share connections, so none waits for one.
        settings.number(CACHE, "wait_timeout")?;
        let (user, password) = (settings.take("user"), settings.take("password"));
        Ok(Self {
            host,
            port,
            user: variable(USER).or(user).filter(|user| !user.is_empty()),
            password: variable(PASSWORD).or(password).filter(|password| !password.is_empty()),
            db: settings.number(CACHE, "db")?.unwrap_or(0),
            connect_timeout,
            socket_timeout,
            pool_size: pool_size.clamp(1, MAX_POOL) as usize,
            ttl: settings.number(CACHE, "ttl")?.filter(|ttl| *ttl > 0).map(Duration::from_secs),
            tls: TlsSettings::read(settings)?,
        })
    }
}

impl TlsSettings {
    fn read(settings: &mut CacheSettings) -> Result<Option<Self>, SettingsError> {
        let enabled = settings.flag(CACHE, "tls_enabled")?;
        let mut path = |setting| settings.take(setting).map(PathBuf::from);
        let (cert, key) = (path("cert"), path("key"));
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (Some(_), None) => return Err(SettingsError::Missing { cache: CACHE, setting: "key" }),
            (None, Some(_)) => return Err(SettingsError::Missing { cache: CACHE, setting: "cert" }),
        };
        let (cacert, cacert_dir) = (path("cacert"), path("cacert_dir"));
        let tls = Self { identity, cacert, cacert_dir, sni: settings.take("sni") };
        // As with Triton, any of its settings switches it on.
        Ok((enabled.unwrap_or(tls != Self::default())).then_some(tls))
    }
}

impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omits the password.
        write!(f, "RedisSettings({}:{}, {:?})", self.host, self.port, self.tls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(given: &[(&str, &str)], environment: &[(&str, &str)]) -> Result<RedisSettings, String> {
        let mut settings: CacheSettings =
            given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let variable = |name: &str| {
            environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        let read = RedisSettings::with_environment(&mut settings, variable).map_err(|it| it.to_string())?;
        assert_eq!(settings.unknown().count(), 0);
        Ok(read)
    }

    const PLACE: [(&str, &str); 2] = [("host", "h"), ("port", "6379")];

    #[test]
    fn all_of_tritons_settings_are_read() {
        let more = [
            ("user", "u"),
            ("password", "p"),
            ("db", "3"),
            ("connect_timeout", "7"),
            ("socket_timeout", "0"),
            ("pool_size", "4"),
            ("wait_timeout", "1000"),
            ("ttl", "60"),
        ];
        let settings = read(&[&PLACE[..], &more].concat(), &[]).unwrap();
        assert_eq!((settings.host.as_str(), settings.port, settings.db), ("h", 6379, 3));
        assert_eq!((settings.user.as_deref(), settings.password.as_deref()), (Some("u"), Some("p")));
        assert_eq!(settings.connect_timeout, Duration::from_millis(7));
        assert_eq!(settings.socket_timeout, SOCKET_TIMEOUT);
        assert_eq!((settings.pool_size, settings.ttl), (4, Some(Duration::from_secs(60))));
        assert_eq!(settings.tls, None);
        assert!(!format!("{settings:?}").contains('p'.to_string().repeat(2).as_str()));
        let environment = [(USER, "eu"), (PASSWORD, "ep")];
        let settings = read(&[&PLACE[..], &more].concat(), &environment).unwrap();
        assert_eq!((settings.user.as_deref(), settings.password.as_deref()), (Some("eu"), Some("ep")));
    }

    #[test]
    fn any_tls_setting_enables_tls() {
        for (setting, is_on) in [
            (&[("tls_enabled", "true")][..], true),
            (&[("tls_enabled", "false"), ("sni", "s")], false),
            (&[("cert", "c"), ("key", "k")], true),
            (&[("cacert", "c")], true),
            (&[("cacert_dir", "c")], true),
            (&[("sni", "s")], true),
            (&[("db", "1")], false),
        ] {
            let settings = read(&[&PLACE[..], setting].concat(), &[]).unwrap();
            assert_eq!(settings.tls.is_some(), is_on, "{setting:?}");
        }
    }

    #[test]
    fn missing_and_invalid_settings_are_refused() {
        for (given, reason) in [
            (&[("host", "h")][..], "'port'"),
            (&[("port", "1")], "'host'"),
            (&[("host", "h"), ("port", "0")], "must be a port"),
            (&[("host", "h"), ("port", "65536")], "must be a port"),
            (&[("host", "h"), ("port", "x")], "a non-negative integer"),
            (&[("host", "h"), ("port", "1"), ("db", "x")], "'db'"),
            (&[("host", "h"), ("port", "1"), ("cert", "c")], "'key'"),
            (&[("host", "h"), ("port", "1"), ("tls_enabled", "maybe")], "true or false"),
        ] {
            let error = read(given, &[]).unwrap_err();
            assert!(error.contains(reason), "{given:?}: {error}");
        }
    }
}
