//! Contents and recipients of reports, and the frequency of measurements.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nereid_core::ServerOptions;
use prost::Message as _;

use super::*;
use crate::format::OrcaLoadReport;
use crate::measure::Load;

fn load() -> Load {
    Load {
        application_utilization: 1.5,
        cpu_utilization: 0.25,
        requests_per_second: 100.0,
        errors_per_second: 0.5,
        named: BTreeMap::from([
            ("m_utilization".into(), 1.5),
            ("odd=name".into(), 1.0),
            ("a\nb".into(), 2.0),
        ]),
    }
}

fn reports(reporting: Reporting) -> LoadReports {
    let server = Server::new(ServerOptions::default(), BTreeMap::new(), Arc::new(BTreeMap::new()));
    LoadReports::new(reporting, true, server)
}

fn asking(format: &str) -> HeaderMap {
    HeaderMap::from_iter([(FORMAT, HeaderValue::try_from(format).unwrap())])
}

#[test]
fn formats_have_equal_contents() {
    let formats = Formats::of(&load());
    assert_eq!(
        formats.text.unwrap(),
        "TEXT application_utilization=1.500000, cpu_utilization=0.250000, rps_fractional=100.000000, \
         eps=0.500000, named_metrics.m_utilization=1.500000"
    );
    let json = formats.json.unwrap();
    let json: serde_json::Value =
        serde_json::from_str(json.to_str().unwrap().strip_prefix("JSON ").unwrap()).unwrap();
    assert_eq!((json["application_utilization"].as_f64(), json["eps"].as_f64()), (Some(1.5), Some(0.5)));
    assert_eq!((&json["cpu_utilization"], &json["rps_fractional"]), (&0.25.into(), &100.0.into()));
    let binary = STANDARD.decode(formats.binary.unwrap()).unwrap();
    let binary = OrcaLoadReport::decode(&*binary).unwrap();
    assert_eq!((binary.application_utilization, binary.rps_fractional), (1.5, 100.0));
    assert_eq!((binary.cpu_utilization, binary.eps), (0.25, 0.5));
    for (name, value) in load().named {
        assert_eq!(json["named_metrics"][&name].as_f64(), Some(value), "{name}");
        assert_eq!(binary.named_metrics[&name], value, "{name}");
    }
}

/// Reports that have just been measured, with a rate of requests or without any.
fn measured(reporting: Reporting, has_rate: bool) -> LoadReports {
    let reports = reports(reporting);
    let until = Instant::now() + Duration::from_secs(3600);
    reports.0.current.store(Arc::new(Report { until, has_rate, formats: Formats::of(&load()) }));
    reports
}

#[test]
fn reports_are_sent_on_request_or_always_if_they_have_a_rate() {
    let (on_request, always) = (measured(Reporting::OnRequest, true), measured(Reporting::Always, true));
    let idle = measured(Reporting::Always, false);
    let none = HeaderMap::new();
    let header = |header: Option<(HeaderName, HeaderValue)>| {
        header.map(|(name, value)| (name, value.to_str().unwrap().split(' ').next().unwrap().to_owned()))
    };
    let (text, json) = (Some((REPORT, "TEXT".to_owned())), Some((REPORT, "JSON".to_owned())));
    for (request, if_on_request, if_always, if_idle) in [
        (&none, &None, &text, &None),
        (&asking("text"), &text, &text, &text),
        (&asking("TEXT"), &text, &text, &text),
        (&asking("json"), &json, &json, &json),
        (&asking("JSON"), &json, &json, &json),
        (&asking("xml"), &None, &None, &None),
        (&asking(""), &None, &None, &None),
    ] {
        assert_eq!(header(on_request.header(request)), *if_on_request, "{request:?}");
        assert_eq!(header(always.header(request)), *if_always, "{request:?}");
        assert_eq!(header(idle.header(request)), *if_idle, "{request:?}");
    }
    assert_eq!(on_request.header(&asking("bin")).unwrap().0, BINARY_REPORT);
    let trailer = |reports: &LoadReports, call: &HeaderMap| Some(reports.for_call(call)?.trailer()?.0);
    for (reports, if_asked, otherwise) in
        [(&on_request, true, false), (&always, true, true), (&idle, true, false)]
    {
        assert_eq!(trailer(reports, &asking("bin")), if_asked.then_some(BINARY_REPORT));
        assert_eq!(trailer(reports, &none), otherwise.then_some(BINARY_REPORT));
    }
}

#[test]
fn load_is_measured_once_per_interval() {
    let reports = reports(Reporting::OnRequest);
    let begin = Instant::now();
    let due = |after: Duration| {
        reports.header_at(&asking("text"), || begin + after).unwrap();
        reports.0.current.load().until - begin
    };
    let ms = Duration::from_millis;
    for (after, expected) in [(1, 501), (2, 501), (500, 501), (501, 1001), (900, 1001), (5000, 5500)] {
        assert_eq!(due(ms(after)), ms(expected), "after {after} ms");
    }
}
