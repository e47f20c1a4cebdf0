//! The release of a model, by the parameters of its configuration.

use std::collections::BTreeSet;

use nereid_core::backend_api::{Error, ModelConfig, Result};
use nereid_core::model_config::{ParameterError, ParameterReader, ParameterSet};

use crate::compare::Comparison;
use crate::shares::Shares;

const VERSIONS: &str = "release_versions";
const STICKY: &str = "release_sticky_header";
const SHADOW: &str = "release_shadow";
const COMPARE: &str = "release_compare";
const PROMOTE: &str = "release_promote_after";
const ERRORS: &str = "release_error_margin";
const LATENCY: &str = "release_latency_ratio";
const DIFFERENCES: &str = "release_difference_limit";

/// The parameters of releases.
pub const PARAMETERS: ParameterSet = ParameterSet {
    names: &[VERSIONS, STICKY, SHADOW, COMPARE, PROMOTE, ERRORS, LATENCY, DIFFERENCES],
    check: |config| Settings::read(config).err().into_iter().collect(),
};

/// The configuration of a release.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// The weights of the versions, the established one first.
    pub shares: Shares,
    /// The header whose value keeps a client with one version.
    pub sticky_header: Option<String>,
    /// The versions that get copies of requests, and of which share, from 0 to 1.
    pub shadows: Vec<(u64, f64)>,
    /// When answers to copies are equal.
    pub comparison: Comparison,
    /// When candidates are promoted and withdrawn; `None` leaves both to people.
    pub rules: Option<Rules>,
}

/// When candidates are promoted and withdrawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rules {
    /// The number of results after which a candidate is promoted, or withdrawn. `None` never promotes.
    pub promote_after: Option<u64>,
    /// How far the share of failed requests may exceed the established version's.
    pub error_margin: f64,
    /// How far latencies may exceed the established version's: 1.5 for a half.
    pub latency_ratio: f64,
    /// The share of compared answers that may differ.
    pub difference_limit: f64,
}

impl Settings {
    /// Reads the parameters of a configuration; `None` without a release.
    ///
    /// # Errors
    /// The first parameter with an invalid value.
    pub(crate) fn of(config: &ModelConfig) -> Result<Option<Self>> {
        Self::read(config).map_err(|error| Error::invalid_arg(error.of_model(config)))
    }

    fn read(config: &ModelConfig) -> Result<Option<Self>, ParameterError> {
        let reader = ParameterReader(config);
        let Some(versions) = reader.text(VERSIONS) else {
            return match PARAMETERS.names.iter().find(|name| reader.text(name).is_some()) {
                Some(name) => Err(reader.error(name, format!("has no effect without '{VERSIONS}'"))),
                None => Ok(None),
            };
        };
        let weights = weights_of(reader, VERSIONS, versions, f64::INFINITY)?;
        if !weights.iter().any(|(_, weight)| *weight > 0.0) {
            return Err(reader.invalid(VERSIONS, versions, "have a version with a weight above 0"));
        }
        let shadows =
            reader.text(SHADOW).map_or(Ok(Vec::new()), |text| weights_of(reader, SHADOW, text, 100.0))?;
        let established = weights.first().map(|(version, _)| *version);
        for (version, _) in &shadows {
            let text = reader.text(SHADOW).unwrap_or_default();
            if Some(*version) == established || !weights.iter().any(|(other, _)| other == version) {
                let expected = format!("name versions of '{VERSIONS}' other than the first");
                return Err(reader.invalid(SHADOW, text, &expected));
            }
        }
        if !shadows.is_empty()
            && let Some(why) = cannot_copy(config)
        {
            return Err(reader.error(SHADOW, format!("does not support models with {why}")));
        }
        let promote_after = reader.number(PROMOTE, 1..=u64::MAX, "be a whole number above 0")?;
        let error_margin = reader.number(ERRORS, 0.0..=1.0, "be a number from 0 to 1")?;
        let latency_ratio = reader.number(LATENCY, 1.0..=f64::MAX, "be a number from 1 on")?;
        let difference_limit = reader.number(DIFFERENCES, 0.0..=1.0, "be a number from 0 to 1")?;
        let is_automatic = promote_after.is_some()
            || [error_margin, latency_ratio, difference_limit].iter().any(Option::is_some);
        let rules = Rules {
            promote_after,
            error_margin: error_margin.unwrap_or(0.01),
            latency_ratio: latency_ratio.unwrap_or(1.5),
            difference_limit: difference_limit.unwrap_or(0.01),
        };
        let sticky_header = reader.text(STICKY).map(str::to_owned);
        if sticky_header.as_ref().is_some_and(String::is_empty) {
            return Err(reader.invalid(STICKY, "", "be the name of a header"));
        }
        Ok(Some(Self {
            shares: Shares::new(weights),
            sticky_header,
            shadows: shadows.into_iter().map(|(version, percent)| (version, percent / 100.0)).collect(),
            comparison: reader.text(COMPARE).map_or(Ok(Comparison::default()), |text| {
                Comparison::parse(text)
                    .ok_or_else(|| reader.invalid(COMPARE, text, "be exact, argmax or tolerance=NUMBER"))
            })?,
            rules: is_automatic.then_some(rules),
        }))
    }
}

/// The reason why requests to a model cannot be copied and their answers compared, if there is one.
fn cannot_copy(config: &ModelConfig) -> Option<&'static str> {
    let is_reshaped = config.input.iter().any(|input| input.reshape.is_some())
        || config.output.iter().any(|output| output.reshape.is_some());
    let is_decoupled = config.model_transaction_policy.is_some_and(|policy| policy.decoupled);
    match (is_reshaped, is_decoupled) {
        (true, _) => Some("'reshape'"),
        (_, true) => Some("decoupled transaction policy"),
        _ => None,
    }
}

/// Versions with a number each, such as `1=90, 2=10`.
fn weights_of(
    reader: ParameterReader<'_>,
    name: &'static str,
    text: &str,
    most: f64,
) -> Result<Vec<(u64, f64)>, ParameterError> {
    let pair = |part: &str| {
        let (version, number) = part.split_once('=')?;
        let number: f64 = number.trim().trim_end_matches('%').parse().ok()?;
        Some((version.trim().parse().ok()?, number))
            .filter(|_| number.is_finite() && (0.0..=most).contains(&number))
    };
    let pairs: Option<Vec<_>> = text.split(',').map(pair).collect();
    let distinct = |pairs: &Vec<(u64, f64)>| {
        pairs.iter().map(|(version, _)| version).collect::<BTreeSet<_>>().len() == pairs.len()
    };
    pairs.filter(distinct).ok_or_else(|| {
        let limit = if most.is_finite() { format!(" up to {most}") } else { String::new() };
        let expected = format!("be distinct versions with numbers{limit}, such as '1=90, 2=10'");
        reader.invalid(name, text, &expected)
    })
}

#[cfg(test)]
mod tests {
    use nereid_core::model_config::parse_text;

    use super::*;

    fn read(text: &str, parameters: &[(&str, &str)]) -> Result<Option<Settings>, String> {
        let parameter = |(key, value): &(&str, &str)| {
            format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}")
        };
        let parameters: String = parameters.iter().map(parameter).collect();
        let config = parse_text(&format!("name: 'm' {text} {parameters}")).unwrap();
        Settings::of(&config).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn parameters_make_a_release() {
        assert_eq!(read("", &[("release", "1"), ("other", "x")]), Ok(None));
        let plain = Settings {
            shares: Shares::new(vec![(1, 90.0), (2, 10.0)]),
            sticky_header: None,
            shadows: Vec::new(),
            comparison: Comparison::Exact,
            rules: None,
        };
        let versions = (VERSIONS, "1=90, 2=10");
        let rules =
            Rules { promote_after: None, error_margin: 0.01, latency_ratio: 1.5, difference_limit: 0.01 };
        for (parameters, expected) in [
            (vec![versions], plain.clone()),
            (vec![(VERSIONS, " 1 = 90%,2=10 ")], plain.clone()),
            (
                vec![(VERSIONS, "4=0.5,3=0")],
                Settings { shares: Shares::new(vec![(4, 0.5), (3, 0.0)]), ..plain.clone() },
            ),
            (
                vec![versions, (STICKY, "X-User")],
                Settings { sticky_header: Some("X-User".into()), ..plain.clone() },
            ),
            (
                vec![versions, (SHADOW, "2=25"), (COMPARE, "tolerance=0.001")],
                Settings {
                    shadows: vec![(2, 0.25)],
                    comparison: Comparison::Tolerance(0.001),
                    ..plain.clone()
                },
            ),
            (
                vec![versions, (PROMOTE, "500")],
                Settings { rules: Some(Rules { promote_after: Some(500), ..rules }), ..plain.clone() },
            ),
            (
                vec![versions, (LATENCY, "2"), (ERRORS, "0"), (DIFFERENCES, "0.5")],
                Settings {
                    rules: Some(Rules {
                        latency_ratio: 2.0,
                        error_margin: 0.0,
                        difference_limit: 0.5,
                        ..rules
                    }),
                    ..plain.clone()
                },
            ),
        ] {
            assert_eq!(read("", &parameters), Ok(Some(expected)), "{parameters:?}");
        }
    }

    #[test]
    fn invalid_parameters_are_reported() {
        let versions = (VERSIONS, "1=90,2=10");
        for (parameters, expected) in [
            (vec![(SHADOW, "2=1")], "'release_shadow' has no effect without 'release_versions'"),
            (vec![(PROMOTE, "2")], "'release_promote_after' has no effect without"),
            (
                vec![(VERSIONS, "")],
                "'release_versions' is '', but must be distinct versions with numbers, such",
            ),
            (vec![(VERSIONS, "1=90,1=10")], "must be distinct versions"),
            (vec![(VERSIONS, "1=-1,2=2")], "must be distinct versions"),
            (vec![(VERSIONS, "1=NaN")], "must be distinct versions"),
            (vec![(VERSIONS, "1=inf")], "must be distinct versions"),
            (vec![(VERSIONS, "one=1")], "must be distinct versions"),
            (vec![(VERSIONS, "1=0,2=0")], "must have a version with a weight above 0"),
            (vec![versions, (SHADOW, "2=101")], "must be distinct versions with numbers up to 100, such"),
            (
                vec![versions, (SHADOW, "1=5")],
                "must name versions of 'release_versions' other than the first",
            ),
            (
                vec![versions, (SHADOW, "3=5")],
                "must name versions of 'release_versions' other than the first",
            ),
            (
                vec![versions, (STICKY, " ")],
                "'release_sticky_header' is '', but must be the name of a header",
            ),
            (vec![versions, (COMPARE, "close")], "must be exact, argmax or tolerance=NUMBER"),
            (vec![versions, (COMPARE, "tolerance=-1")], "must be exact, argmax or tolerance=NUMBER"),
            (vec![versions, (PROMOTE, "0")], "must be a whole number above 0"),
            (vec![versions, (PROMOTE, "1.5")], "must be a whole number above 0"),
            (vec![versions, (ERRORS, "2")], "must be a number from 0 to 1"),
            (vec![versions, (LATENCY, "0.9")], "must be a number from 1 on"),
            (vec![versions, (DIFFERENCES, "NaN")], "must be a number from 0 to 1"),
        ] {
            let error = read("", &parameters).unwrap_err();
            assert!(
                error.starts_with("model 'm': parameter 'release_") && error.contains(expected),
                "{error}"
            );
        }
        let copies = [versions, (SHADOW, "2=5")];
        for (text, why) in [
            ("input { name: 'x' reshape { shape: [1] } }", "with 'reshape'"),
            ("output { name: 'x' reshape { shape: [1] } }", "with 'reshape'"),
            ("model_transaction_policy { decoupled: true }", "with decoupled transaction policy"),
        ] {
            assert!(read(text, &copies).unwrap_err().ends_with(why));
            assert!(read(text, &[versions]).is_ok());
        }
    }
}
