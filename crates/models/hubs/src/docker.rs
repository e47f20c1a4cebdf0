//! Registry logins in the format of Docker's command line, which other tools share: in its file, or from a credential
//! helper that the file names.
//!
//! A helper is called `docker-credential-NAME`, reads a host from its input, and writes a login as JSON.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use nereid_http_client::Environment;

/// A helper without output for this long is ended.
const PATIENCE: Duration = Duration::from_secs(30);

/// The longest login.
const LIMIT: u64 = 1 << 20;

/// The user name that marks an identity token.
const TOKEN_USER: &str = "<token>";

/// The login of a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Login {
    /// User and password, encoded for the header.
    Basic(String),
    /// An identity token, exchanged for access tokens.
    Identity(String),
}

/// The file.
#[derive(Default, Deserialize)]
struct Config {
    #[serde(default)]
    auths: BTreeMap<String, Auth>,
    /// The helper for all registries.
    #[serde(default, rename = "credsStore")]
    store: String,
    /// The helpers for single registries.
    #[serde(default, rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
struct Auth {
    #[serde(default)]
    auth: String,
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    identitytoken: String,
}

/// The output of a helper.
#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "Username")]
    user: String,
    #[serde(rename = "Secret")]
    secret: String,
}

impl Login {
    /// The login for a registry, if there is one.
    ///
    /// # Errors
    /// The helper fails.
    pub(crate) async fn of(environment: &Environment, host: &str) -> Result<Option<Self>, String> {
        let Some(config) = Config::read(environment) else { return Ok(None) };
        let names = names(host);
        let helper = names.iter().find_map(|name| Some((name, config.helpers.get(name)?)));
        let helper = helper.or_else(|| Some((names.first()?, &config.store)));
        if let Some((name, program)) = helper.filter(|(_, program)| !program.is_empty())
            && let Some(login) = ask(program, name).await?
        {
            return Ok(Some(login));
        }
        Ok(names.iter().find_map(|name| config.auths.get(name)?.login()))
    }

    /// Secrets that no message may contain.
    pub(crate) fn secrets(&self) -> Vec<String> {
        match self {
            Self::Basic(basic) => {
                let text = STANDARD.decode(basic).ok().and_then(|text| String::from_utf8(text).ok());
                let password = text.and_then(|text| Some(text.split_once(':')?.1.to_owned()));
                [basic.clone()].into_iter().chain(password).collect()
            }
            Self::Identity(token) => vec![token.clone()],
        }
    }

    fn new(user: &str, secret: &str) -> Self {
        match user {
            TOKEN_USER => Self::Identity(secret.to_owned()),
            _ => Self::Basic(STANDARD.encode(format!("{user}:{secret}"))),
        }
    }
}

impl Config {
    fn read(environment: &Environment) -> Option<Self> {
        let folder = environment.get("DOCKER_CONFIG").map(PathBuf::from);
        let text = fs::read(folder.or_else(|| environment.at_home(".docker"))?.join("config.json")).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

impl Auth {
    fn login(&self) -> Option<Login> {
        if !self.identitytoken.is_empty() {
            return Some(Login::Identity(self.identitytoken.clone()));
        }
        if !self.auth.is_empty() {
            return Some(Login::Basic(self.auth.clone()));
        }
        (!self.username.is_empty()).then(|| Login::new(&self.username, &self.password))
    }
}

/// The names that a registry may have in the file.
fn names(host: &str) -> Vec<String> {
    let of_docker = ["docker.io", "registry-1.docker.io"].contains(&host);
    let of_docker = of_docker.then(|| "https://index.docker.io/v1/".to_owned());
    let written =
        [host.to_owned(), format!("https://{host}"), format!("http://{host}"), format!("https://{host}/v1/")];
    of_docker.into_iter().chain(written).collect()
}

/// Runs a helper for a host; `None` if it has no login.
async fn ask(program: &str, host: &str) -> Result<Option<Login>, String> {
    let name = format!("docker-credential-{program}");
    let is_name = program.chars().all(|letter| letter.is_ascii_alphanumeric() || "._-".contains(letter));
    if !is_name {
        return Err(format!("'{name}' cannot be the name of a program for logins"));
    }
    let failed = |error: &dyn std::fmt::Display| format!("cannot run '{name}': {error}");
    let mut command = Command::new(&name);
    command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut running = HelperProcess(command.spawn().map_err(|error| failed(&error))?);
    let (input, output) = (running.0.stdin.take(), running.0.stdout.take());
    let host = host.to_owned();
    let talk = spawn_blocking(move || {
        if let Some(mut input) = input {
            // A helper that ignores its input reports that itself.
            input.write_all(host.as_bytes()).unwrap_or_default();
        }
        let mut text = Vec::new();
        output.map_or(Ok(0), |output| output.take(LIMIT).read_to_end(&mut text))?;
        std::io::Result::Ok(text)
    });
    let late = |_| format!("'{name}' gives no login within {} seconds", PATIENCE.as_secs());
    let text = timeout(PATIENCE, talk).await.map_err(late)?.map_err(|error| failed(&error))?;
    let text = text.map_err(|error| failed(&error))?;
    // It has closed its output, and ends.
    let status = spawn_blocking(move || running.0.wait()).await.map_err(|error| failed(&error))?;
    if !status.map_err(|error| failed(&error))?.success() {
        return Ok(None);
    }
    let answer: Answer =
        serde_json::from_slice(&text).map_err(|_| format!("what '{name}' writes is not a login"))?;
    Ok(Some(Login::new(&answer.user, &answer.secret)))
}

/// A helper process that is killed on drop.
struct HelperProcess(Child);

impl Drop for HelperProcess {
    fn drop(&mut self) {
        // It may have ended already.
        self.0.kill().and_then(|()| self.0.wait().map(drop)).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(config: &str, host: &str) -> Result<Option<Login>, String> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("config.json"), config).unwrap();
        let path = folder.path().to_str().unwrap().to_owned();
        let environment = Environment::new(move |name| (name == "DOCKER_CONFIG").then(|| path.clone()));
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(Login::of(&environment, host))
    }

    #[test]
    fn logins_are_those_of_the_file() {
        let basic = |text: &str| Some(Login::Basic(STANDARD.encode(text)));
        for (config, host, expected) in [
            (r#"{"auths": {"h:1": {"auth": "bWU6cHc="}}}"#, "h:1", basic("me:pw")),
            (r#"{"auths": {"https://h": {"auth": "bWU6cHc="}}}"#, "h", basic("me:pw")),
            (r#"{"auths": {"h": {"username": "me", "password": "a:b"}}}"#, "h", basic("me:a:b")),
            (
                r#"{"auths": {"h": {"auth": "bWU6", "identitytoken": "t"}}}"#,
                "h",
                Some(Login::Identity("t".into())),
            ),
            (
                r#"{"auths": {"https://index.docker.io/v1/": {"auth": "bWU6cHc="}}}"#,
                "docker.io",
                basic("me:pw"),
            ),
            (r#"{"auths": {"other": {"auth": "bWU6cHc="}}}"#, "h", None),
            // The file omits logins that a helper keeps.
            (r#"{"auths": {"h": {}}, "credHelpers": {"other": "x"}}"#, "h", None),
            ("{", "h", None),
        ] {
            assert_eq!(login(config, host), Ok(expected), "{config}");
        }
    }

    #[test]
    fn programs_that_are_missing_are_named() {
        for (config, message) in [
            (
                r#"{"credsStore": "nowhere-to-be-found"}"#,
                "cannot run 'docker-credential-nowhere-to-be-found'",
            ),
            (r#"{"credHelpers": {"h": "../bin/sh"}}"#, "'docker-credential-../bin/sh' cannot be the name"),
        ] {
            let error = login(config, "h").unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn no_part_of_a_login_is_shown() {
        assert_eq!(
            Login::new("me", "pass:word").secrets(),
            [STANDARD.encode("me:pass:word"), "pass:word".into()]
        );
        assert_eq!(Login::new(TOKEN_USER, "t").secrets(), ["t"]);
    }
}
