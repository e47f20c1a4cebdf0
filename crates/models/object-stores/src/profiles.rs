//! The files of Amazon's command line: `~/.aws/credentials` and `~/.aws/config`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use nereid_http_client::Environment;

/// The longest file that is read.
const LIMIT: u64 = 1 << 20;

/// The settings of a profile.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Profile {
    settings: BTreeMap<String, String>,
}

impl Profile {
    /// The profile of this name; `None` if no file has it.
    pub(crate) fn read(name: &str, environment: &Environment) -> Option<Self> {
        let file = |variable: &str, default: &str| {
            environment.get(variable).map(PathBuf::from).or_else(|| environment.at_home(default))
        };
        let text = |path: Option<PathBuf>| {
            let path = path?;
            let is_short =
                fs::metadata(&path).is_ok_and(|metadata| metadata.is_file() && metadata.len() <= LIMIT);
            is_short.then(|| fs::read_to_string(&path).ok()).flatten()
        };
        let credentials = text(file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials"));
        let config = text(file("AWS_CONFIG_FILE", ".aws/config"));
        let in_config = config.and_then(|text| section(&text, &[&format!("profile {name}"), name]));
        let in_credentials = credentials.and_then(|text| section(&text, &[name]));
        if in_config.is_none() && in_credentials.is_none() {
            return None;
        }
        // Settings in the file of credentials take precedence.
        let mut settings = in_config.unwrap_or_default();
        settings.extend(in_credentials.unwrap_or_default());
        Some(Self { settings })
    }

    pub(crate) fn get(&self, setting: &str) -> Option<&str> {
        self.settings.get(setting).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// The settings of the first section with one of these names. Nested settings are named `group.setting`.
fn section(text: &str, names: &[&str]) -> Option<BTreeMap<String, String>> {
    let mut settings = None;
    let (mut is_inside, mut group) = (false, String::new());
    for line in text.lines() {
        if line.trim().is_empty() || line.trim_start().starts_with(['#', ';']) {
            continue;
        }
        if let Some(header) = line.trim().strip_prefix('[') {
            let name = header.split_once(']').map_or(header, |(name, _)| name);
            let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
            is_inside = names.contains(&&*name);
            if is_inside {
                settings.get_or_insert_with(BTreeMap::new);
            }
        } else if is_inside
            && let (Some((key, value)), Some(settings)) = (line.split_once('='), settings.as_mut())
        {
            // A comment after a value begins with a space.
            let value = value.split(" #").next().unwrap_or_default().split(" ;").next().unwrap_or_default();
            let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().to_owned());
            if line.starts_with(char::is_whitespace) {
                settings.insert(format!("{group}.{key}"), value);
            } else {
                group.clone_from(&key);
                settings.insert(key, value);
            }
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDENTIALS: &str = "# comment\n[default]\naws_access_key_id = a\naws_secret_access_key=b=c\n\n[other]\n\
        aws_access_key_id = o # mine\nregion = of-credentials\n";
    const CONFIG: &str = "[default]\nregion = x\n[profile   other]\nregion = y\noutput = json\ns3 =\n  region = nested\n[only]\nregion = z\n";

    fn read(name: &str) -> Option<Profile> {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(".aws")).unwrap();
        fs::write(folder.path().join(".aws/credentials"), CREDENTIALS).unwrap();
        fs::write(folder.path().join(".aws/config"), CONFIG).unwrap();
        let home = folder.path().to_str().unwrap().to_owned();
        Profile::read(name, &Environment::new(move |name| (name == "HOME").then(|| home.clone())))
    }

    #[test]
    fn a_profile_is_what_both_files_say() {
        let values = |name: &str| {
            let profile = read(name).unwrap();
            ["aws_access_key_id", "aws_secret_access_key", "region"]
                .map(|setting| profile.get(setting).unwrap_or("-").to_owned())
        };
        assert_eq!(values("default"), ["a", "b=c", "x"]);
        assert_eq!(values("other"), ["o", "-", "of-credentials"]);
        assert_eq!(values("only"), ["-", "-", "z"]);
        assert_eq!(read("other").unwrap().get("s3.region"), Some("nested"));
        assert!(read("none").is_none());
    }

    #[test]
    fn variables_name_other_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine");
        fs::write(&path, "[p]\nregion = here").unwrap();
        let path = path.to_str().unwrap().to_owned();
        let environment = Environment::new(move |name| (name == "AWS_CONFIG_FILE").then(|| path.clone()));
        assert_eq!(Profile::read("p", &environment).unwrap().get("region"), Some("here"));
        assert!(Profile::read("p", &Environment::new(|_| None)).is_none());
    }
}
