//! The release of a model: its state, and decisions by hand.

use hyper::StatusCode;
use nereid_core::Verdict;
use nereid_core::backend_api::{Error, Result};
use nereid_http::{Reply, RequestBody, reply};
use nereid_protocol::documents::ReleaseDocument;
use nereid_protocol::{Action, as_invalid_arg, parse_version};

use crate::call::Call;
use crate::control::Members;

/// The longest reason of an operator, in bytes.
const MAX_REASON: usize = 200;

/// The release of a model. Answers that differed are shown to clients that may read traces of the model, which have contents of
/// tensors, too.
pub(crate) fn show(call: &Call<'_>) -> Result<Reply> {
    let model = call.face.server.model(call.model(), None)?;
    let shows_answers = call.http.shows(Action::ReadTrace, model.id());
    let document = ReleaseDocument::of(&model, shows_answers)?;
    Ok(reply::json(StatusCode::OK, &document))
}

/// Promotes or withdraws a candidate.
pub(crate) fn decide(call: &Call<'_>, body: RequestBody) -> Result<Reply> {
    let decision = Members::read(call.face, body).and_then(|it| Decision::of(it, &call.target.model));
    let decision = decision.map_err(as_invalid_arg)?;
    let Decision { version, verdict, reason } = &decision;
    let action = match verdict {
        Verdict::Promoted => "promote",
        Verdict::Withdrawn => "withdraw",
    };
    call.http.explain(|| format!("{action} version {version}: {reason}"));
    let server = &call.face.server;
    // All requests would go to a promoted version, so it has to be there.
    let version_to_find = (*verdict == Verdict::Promoted).then_some(*version);
    let model = server.model(call.model(), version_to_find)?;
    let name = model.name();
    let release =
        model.release().ok_or_else(|| Error::not_found(format!("model '{name}' has no release")))?;
    release.decide(*version, *verdict, reason)?;
    Ok(reply::empty(StatusCode::OK))
}

#[derive(Debug, PartialEq, Eq)]
struct Decision {
    version: u64,
    verdict: Verdict,
    reason: String,
}

impl Decision {
    fn of(members: Members, model: &str) -> Result<Self> {
        let version = |name| members.text(name).map(|it| it.map(|it| parse_version(it, model)).transpose());
        let (version, verdict) = match (version("promote")??, version("withdraw")??) {
            (Some(version), None) => (version, Verdict::Promoted),
            (None, Some(version)) => (version, Verdict::Withdrawn),
            _ => {
                return Err(Error::invalid_arg(
                    "the body must name a version to 'promote' or to 'withdraw', such as {\"promote\": \"2\"}",
                ));
            }
        };
        let mut reason = "on request".to_owned();
        if let Some(text) = members.text("reason")? {
            if text.len() > MAX_REASON || text.chars().any(char::is_control) {
                return Err(Error::invalid_arg(format!(
                    "'reason' must be one line of at most {MAX_REASON} bytes"
                )));
            }
            reason = format!("{reason}: {text}");
        }
        Ok(Self { version, verdict, reason })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn decision(body: &str) -> Result<Decision> {
        let body = [Bytes::copy_from_slice(body.as_bytes())].into_iter().collect();
        Decision::of(Members::optional(body)?, "m")
    }

    #[test]
    fn a_body_names_one_version() {
        let decided =
            |version, verdict, reason: &str| Ok(Decision { version, verdict, reason: reason.into() });
        assert_eq!(decision(r#"{"promote":"2"}"#), decided(2, Verdict::Promoted, "on request"));
        let expected = decided(7, Verdict::Withdrawn, "on request: bad ö");
        assert_eq!(decision(r#"{"withdraw":"7","reason":"bad ö","promote":null}"#), expected);
        let long = format!(r#"{{"promote":"2","reason":"{}"}}"#, "x".repeat(MAX_REASON + 1));
        for (body, expected) in [
            ("", "must name a version"),
            ("{}", "must name a version"),
            ("[]", "must name a version"),
            (r#"{"promote":"1","withdraw":"2"}"#, "must name a version"),
            (r#"{"promote":2}"#, "'promote' is not a string"),
            (r#"{"promote":"two"}"#, "version"),
            (r#"{"promote":"-1"}"#, "version"),
            (r#"{"promote":"99999999999999999999"}"#, "version"),
            (r#"{"promote":"2","reason":1}"#, "'reason' is not a string"),
            (r#"{"promote":"2","reason":"a\nb"}"#, "one line"),
            (&long, "at most 200 bytes"),
        ] {
            let error = decision(body).unwrap_err();
            assert!(error.message().contains(expected), "{body}: {error}");
        }
    }
}
