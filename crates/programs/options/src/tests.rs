//! Command lines, good and bad.

use std::path::PathBuf;

use clap::CommandFactory;
use nereid_assembly::BackendSetting;
use nereid_core::{RateLimit, ResourceLimit};
use nereid_cuda::PoolSizes;

use super::sources::{is_switch, options as declared};
use super::*;

fn parsed(arguments: &[&str]) -> Result<Options, clap::Error> {
    Options::try_parse_from([&["nereid", "--model-repository=models"], arguments].concat())
}

#[test]
fn declaration_passes_claps_checks() {
    Options::command().debug_assert();
}

#[test]
fn values_follow_an_equals_sign_or_a_space() {
    for arguments in [
        ["--http-port=9000", "--exit-on-error=false"].as_slice(),
        &["--http-port", "9000", "--exit-on-error", "0"],
    ] {
        let options = parsed(arguments).unwrap();
        assert_eq!((options.http.http_port, options.server.exit_on_error), (9000, false));
    }
}

#[test]
fn repositories_accumulate_under_both_names() {
    let options = parsed(&["--model-store=more"]).unwrap();
    assert_eq!(options.models.repositories(), [PathBuf::from("models"), PathBuf::from("more")]);
}

#[test]
fn unknown_host_policy_settings_are_refused() {
    let given = ["--host-policy=cpu,cpu-cores=0-1,3-3", "--host-policy=a,b,numa-node=0"];
    let refused = parsed(&given).unwrap_err().to_string();
    assert!(refused.contains("'b,numa-node'"), "{refused}");
    assert!(parsed(&given[..1]).unwrap().execution.host_policies().is_ok());
    for wrong in
        ["", "cpu", "cpu,", "cpu,numa-node", ",numa-node=0", "cpu,=0", "cpu,numa-node=", "p,sockets=1"]
    {
        assert!(host_policy::read(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn unusable_policy_value_affects_only_its_models() {
    for (setting, problem) in [
        ("p,cpu-cores=0-1", None),
        ("p,cpu-cores=0", Some("models of policy 'p' cannot be loaded: cpu-cores is '0'")),
        ("cpu,numa-node=left", Some("models of policy 'cpu' cannot be loaded: numa-node is 'left'")),
    ] {
        let options = parsed(&[&format!("--host-policy={setting}")]).unwrap();
        assert!(options.execution.host_policies().is_ok(), "{setting}");
        let advice: Vec<_> = options.execution.advice().collect();
        assert_eq!(advice.len(), usize::from(problem.is_some()), "{setting}: {advice:?}");
        assert!(advice.iter().all(|line| line.contains(problem.unwrap())), "{setting}: {advice:?}");
    }
}

#[test]
fn resources_parse_as_name_count_and_optional_device() {
    let options =
        parsed(&["--rate-limit=execution_count", "--rate-limit-resource=A:4", "--rate-limit-resource=B:1:2"]);
    let limit = |name: &str, count, device| ResourceLimit { name: name.into(), count, device };
    let expected = RateLimit::ExecutionCount(vec![limit("A", 4, None), limit("B", 1, Some(2))]);
    assert_eq!(options.unwrap().execution.rate_limit(), expected);
    assert_eq!(parsed(&["--rate-limit-resource=A:4"]).unwrap().execution.rate_limit(), RateLimit::Off);
    for wrong in ["A", ":1", "A:", "A:-1", "A:1:", "A:1:x", "A:1:-1", "A:1:2:3"] {
        assert!(execution::resource(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn last_value_of_a_repeated_option_wins() {
    let options = parsed(&["--http-port=1", "--id=a", "--http-port=2", "--id=b"]).unwrap();
    assert_eq!((options.http.http_port, options.server.id.as_str()), (2, "b"));
}

#[test]
fn configurations_are_completed_unless_an_option_disables_it() {
    for (arguments, complete, advice) in [
        ([].as_slice(), true, None),
        (&["--disable-auto-complete-config"], false, None),
        (&["--strict-model-config=true"], false, Some("use --disable-auto-complete-config")),
        (&["--strict-model-config=OFF"], true, Some("are completed unless")),
        (
            &["--disable-auto-complete-config", "--strict-model-config", "false"],
            false,
            Some("overrides the deprecated"),
        ),
    ] {
        let options = parsed(arguments).unwrap();
        assert_eq!(options.configurations.read_options().complete, complete, "{arguments:?}");
        assert_eq!(options.configurations.advice().is_some(), advice.is_some(), "{arguments:?}");
        let text = options.configurations.advice().unwrap_or_default();
        assert!(text.contains(advice.unwrap_or_default()), "{arguments:?}: {text}");
    }
}

#[test]
fn backend_directory_falls_back_to_the_references() {
    let program = env::current_exe().unwrap();
    assert!(!program.parent().unwrap().with_file_name("backends").exists());
    let default = parsed(&[]).unwrap().configurations.backend_directory();
    assert_eq!(default, PathBuf::from("/opt/tritonserver/backends"));
    let given = parsed(&["--backend-directory=/opt/backends"]).unwrap();
    assert_eq!(given.configurations.backend_directory(), PathBuf::from("/opt/backends"));
}

#[test]
fn backend_settings_accumulate() {
    let given =
        parsed(&["--backend-config=a=1", "--backend-config=python,b=2", "--disable-auto-complete-config"]);
    let given = given.unwrap().configurations;
    assert!(!given.read_options().complete);
    let setting = |backend: Option<&str>, key: &str, value: &str| BackendSetting {
        backend: backend.map(str::to_owned),
        key: key.into(),
        value: value.into(),
    };
    let settings = [setting(None, "a", "1"), setting(Some("python"), "b", "2")];
    assert_eq!(given.platform(PoolSizes::default()).backends.settings, settings);
}

#[test]
fn model_config_name_is_passed_on() {
    let options = parsed(&["--model-config-name=h100"]).unwrap();
    assert_eq!(options.configurations.read_options().config_name.as_deref(), Some("h100"));
    assert_eq!(parsed(&[]).unwrap().configurations.read_options().config_name, None);
}

#[test]
fn check_accepts_repositories_and_configuration_options() {
    let arguments =
        ["nereid", "check", "a", "b", "--json", "--model-config-name=h100", "--disable-auto-complete-config"];
    let options = Options::try_parse_from(arguments).unwrap();
    let Some(Command::Check(check)) = options.command else { panic!("{options:?}") };
    assert_eq!(check.repositories, [PathBuf::from("a"), PathBuf::from("b")]);
    assert!(check.json && check.complete.is_none());
    let reading = check.reading();
    assert_eq!((reading.complete, reading.config_name.as_deref()), (false, Some("h100")));

    assert!(parsed(&[]).unwrap().command.is_none());
    for arguments in [
        ["nereid", "check", "--json", "--complete=m", "a"].as_slice(),
        &["nereid", "check"],
        &["nereid", "check", "a", "--http-port=1"],
        &["nereid", "--model-repository=a", "check", "a"],
    ] {
        assert_eq!(Options::try_parse_from(arguments).unwrap_err().exit_code(), 2, "{arguments:?}");
    }
}

#[test]
fn verbose_level_is_a_number_or_a_boolean() {
    for (argument, level) in
        [("0", 0), ("1", 1), ("300", 300), ("2147483647", 2_147_483_647), ("true", 1), ("False", 0)]
    {
        assert_eq!(
            parsed(&["--log-verbose", argument]).unwrap().log.settings().verbose_level,
            level,
            "{argument}"
        );
    }
    assert_eq!(parsed(&[]).unwrap().log.settings().verbose_level, 0);
}

#[test]
fn each_protocol_has_its_own_port() {
    for (arguments, collide) in [
        (["--http-port=1", "--grpc-port=1"].as_slice(), true),
        (&["--http-port=1", "--grpc-port=1", "--reuse-http-port=1", "--reuse-grpc-port=1"], true),
        (&["--http-port=1", "--grpc-port=1", "--allow-grpc=0"], false),
        (&["--http-port=1", "--grpc-port=1", "--http-address=127.0.0.1", "--grpc-address=127.0.0.2"], false),
        (&["--http-port=0", "--grpc-port=0"], false),
        (&["--http-address=unix:/a", "--grpc-address=unix:/a?mode=0600"], true),
        (&["--http-address=unix:/a", "--grpc-address=unix:/b", "--http-port=1", "--grpc-port=1"], false),
        (&["--http-address=unix:/a", "--metrics-address=unix:/a"], true),
        (
            &[
                "--http-address=unix:/a",
                "--allow-sagemaker=1",
                "--sagemaker-safe-port-range=1-2",
                "--allow-grpc=0",
            ],
            false,
        ),
        (&["--allow-sagemaker=1", "--sagemaker-port=8002"], true),
        (&["--allow-sagemaker=1", "--sagemaker-port=8002", "--allow-metrics=0"], false),
        (&["--sagemaker-port=8002"], false),
        (&["--allow-sagemaker=1", "--sagemaker-safe-port-range=8000-8001"], true),
        (&["--allow-sagemaker=1", "--sagemaker-safe-port-range=8000-8002"], false),
        (
            &[
                "--allow-sagemaker=1",
                "--sagemaker-safe-port-range=1-2",
                "--http-address=127.0.0.1",
                "--grpc-address=::",
                "--allow-metrics=0",
            ],
            false,
        ),
        (&[], false),
    ] {
        assert_eq!(parsed(arguments).unwrap().contradiction().is_some(), collide, "{arguments:?}");
    }
}

#[test]
fn invalid_values_are_refused() {
    for argument in [
        "--http-port=70000",
        "--strict-readiness=maybe",
        "--repository-poll-secs=x",
        "--http-thread-count=-1",
        "--model-load-thread-count=-1",
        "--exit-timeout-secs=3x",
        "--rate-limit=sometimes",
        "--log-verbose=-1",
        "--log-verbose=2147483648",
        "--log-verbose=yes",
        "--log-format=default2",
        "--nope=1",
        "--disable-auto-complete-config=true",
        "--strict-model-config",
        "--strict-model-config=maybe",
        "--model-config-name=",
        "--backend-config=",
        "--backend-config=setting",
        "--backend-config=setting=",
        "--backend-config==value",
        "--backend-config=,setting=value",
        "--backend-config=backend,=value",
        "--backend-config=setting=a,b",
    ] {
        assert!(parsed(&[argument]).is_err(), "{argument}");
    }
    assert!(!Options::try_parse_from(["nereid"]).unwrap().has_repository());
}

#[test]
fn numbers_have_the_limits_of_the_reference() {
    let ints = [
        "exit-timeout-secs",
        "repository-poll-secs",
        "model-load-thread-count",
        "model-load-retry-count",
        "http-thread-count",
        "sagemaker-thread-count",
        "vertex-ai-thread-count",
        "buffer-manager-thread-count",
        "metrics-interval-ms",
        "grpc-infer-allocation-pool-size",
        "grpc-max-response-pool-size",
        "grpc-keepalive-time",
        "grpc-keepalive-timeout",
        "grpc-http2-max-pings-without-data",
        "grpc-http2-max-ping-strikes",
        "grpc-http2-min-recv-ping-interval-without-data",
        "grpc-max-connection-age",
        "grpc-max-connection-age-grace",
        "log-verbose",
    ];
    let sizes = ["pinned-memory-pool-byte-size", "response-cache-byte-size"];
    let ints = ints.map(|name| (name, i32::MAX as u64));
    let sizes = sizes.map(|name| (name, i64::MAX as u64));
    for (name, limit) in ints.into_iter().chain(sizes) {
        for (value, is_valid) in [
            (1, true),
            (u128::from(limit), true),
            (u128::from(limit) + 1, false),
            (u128::from(limit) * 2 + 1, false),
            (u128::from(limit) * 2 + 2, false),
            (1 << 64, false),
            (99_999_999_999_999_999_999, false),
        ] {
            let parsed = parsed(&[&format!("--{name}={value}")]);
            assert_eq!(parsed.is_ok(), is_valid, "--{name}={value}");
        }
    }
}

#[test]
fn booleans_accept_the_references_words_in_any_case() {
    for (word, expected) in [
        ("true", Some(true)),
        ("TRUE", Some(true)),
        ("True", Some(true)),
        ("on", Some(true)),
        ("ON", Some(true)),
        ("1", Some(true)),
        ("false", Some(false)),
        ("False", Some(false)),
        ("Off", Some(false)),
        ("0", Some(false)),
        ("yes", None),
        ("YES", None),
        ("y", None),
        ("t", None),
        ("no", None),
        ("n", None),
        ("f", None),
        ("2", None),
        ("", None),
        (" true", None),
    ] {
        let parsed = parsed(&[&format!("--log-info={word}")]).ok();
        assert_eq!(parsed.map(|options| options.log.settings().info), expected, "{word}");
    }
}

#[test]
fn enumerations_accept_the_references_words_in_any_case() {
    for (option, words) in [
        ("model-control-mode", ["none", "poll", "explicit"].as_slice()),
        ("rate-limit", &["off", "execution_count"]),
        ("grpc-infer-response-compression-level", &["none", "low", "medium", "high"]),
        ("trace-level", &["off", "timestamps", "tensors", "min", "max"]),
        ("trace-config=mode", &["triton", "opentelemetry"]),
        ("trace-config=level", &["off", "timestamps", "tensors"]),
    ] {
        for word in words {
            let (first, rest) = word.split_at(1);
            for spelled in
                [(*word).to_owned(), word.to_uppercase(), format!("{}{rest}", first.to_uppercase())]
            {
                assert!(parsed(&[&format!("--{option}={spelled}")]).is_ok(), "--{option}={spelled}");
            }
        }
        for wrong in ["", "nothing", "o"] {
            assert!(parsed(&[&format!("--{option}={wrong}")]).is_err(), "--{option}={wrong}");
        }
    }
    let poll = parsed(&["--model-control-mode=Poll"]).unwrap().config().unwrap();
    assert_eq!(poll.poll.unwrap().interval, Duration::from_secs(15));
}

#[test]
fn thread_count_zero_means_the_minimum() {
    for (count, loads) in [("0", 1), ("1", 1), ("7", 7)] {
        let options =
            parsed(&[&format!("--model-load-thread-count={count}"), &format!("--http-thread-count={count}")]);
        let options = options.unwrap();
        assert_eq!(options.models.load_threads(), loads);
        let threads = std::thread::available_parallelism().unwrap().get();
        assert_eq!(options.http.threads(), if count == "0" { threads } else { loads });
    }
}

#[test]
fn poll_interval_zero_disables_polling() {
    let options = |seconds: &str| {
        parsed(&[
            "--model-control-mode=poll",
            "--repository-watch=true",
            &format!("--repository-poll-secs={seconds}"),
        ])
    };
    let one = options("1").unwrap();
    assert!(one.contradiction().is_none() && one.config().unwrap().poll.unwrap().watch);
    assert!(options("0").unwrap().contradiction().is_some());
    let never = parsed(&["--model-control-mode=poll", "--repository-poll-secs=0"]).unwrap();
    assert!(never.contradiction().is_none());
    let config = never.config().unwrap();
    assert!(config.poll.is_none() && config.server.model_control == nereid_core::ModelControl::Poll);
}

#[test]
fn abbreviations_work_only_on_the_command_line() {
    let options =
        parsed_with(&["--model-repo=m", "--http-po=1", "--log-warn=OFF"], &[("NEREID_HTTP_PO", "2")]);
    let options = options.unwrap();
    assert_eq!((options.http.http_port, options.log.settings().warning), (1, false));
    let error = parsed_with(&["--model-repo=m", "--exit=1"], &[]).unwrap_err();
    assert!(
        error.contains("'--exit' is ambiguous: it matches --exit-on-error, --exit-timeout-secs"),
        "{error}"
    );
    let file = config_file("http-po = 1");
    let error = parsed_with(&["--model-repo=m", "--config-file", file.path().to_str().unwrap()], &[]);
    assert!(error.unwrap_err().contains("unknown option 'http-po'"));
}

#[test]
fn help_names_every_kind_of_address() {
    let command = Options::command();
    let help = |command: &clap::Command, id: &str| {
        let argument = command.get_arguments().find(|argument| argument.get_id() == id).unwrap();
        argument.get_help().unwrap().to_string()
    };
    let texts = [
        help(&command, "model_repository"),
        help(command.find_subcommand("check").unwrap(), "repositories"),
        command.find_subcommand("pull").unwrap().get_about().unwrap().to_string(),
    ];
    let mut known = 0;
    for scheme in ["s3", "gs", "as", "az", "hf", "oci", "https", "file", "ftp", "memory"] {
        let address = format!("{scheme}://");
        let is_known = nereid_assembly::is_address(Path::new(&format!("{address}one/two")));
        known += usize::from(is_known);
        for text in &texts {
            assert_eq!(text.contains(&address), is_known, "{address}: {text}");
        }
    }
    assert!(known >= 6, "{known}");
}

#[test]
fn help_command_shows_options_in_groups() {
    for line in [["nereid", "help"].as_slice(), &["nereid", "--help"], &["nereid", "help", "check"]] {
        let arguments = line.iter().map(Into::into).collect();
        let help = parse(arguments, |_| None).unwrap_err();
        assert_eq!(help.exit_code(), 0, "{line:?}");
        let help = help.to_string();
        for heading in ["General:", "Configurations and backends:"] {
            assert!(help.contains(heading), "{line:?}: {help}");
        }
    }
    // Each option has a heading; clap's own are for options that print.
    let help = Options::command().render_long_help().to_string();
    let (_, plain) = help.split_once("\nOptions:\n").unwrap();
    let plain = plain.split_once(":\n").map_or(plain, |(plain, _)| plain);
    assert_eq!(plain.matches("--").count(), 2, "{plain}");
}

/// Parses a command line with these variables of the environment.
fn parsed_with(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Options, String> {
    let arguments = ["nereid"].iter().chain(arguments).map(Into::into).collect();
    let variable =
        |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
    parse(arguments, variable).map_err(|error| error.to_string())
}

fn config_file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

#[test]
fn command_line_overrides_environment_overrides_file() {
    let file = config_file(
        "# A comment.\nmodel-repository = ['a', 'b']\nhttp-port = 1\ngrpc-port = 2\nid = 'file'\nstrict-readiness = false\n\
         disable-auto-complete-config = true\n",
    );
    let path = file.path().to_str().unwrap();
    let variables = [("NEREID_CONFIG_FILE", path), ("NEREID_HTTP_PORT", "3"), ("NEREID_ID", "environment")];
    let options = parsed_with(&["--id=line"], &variables).unwrap();
    assert_eq!(options.models.repositories(), [PathBuf::from("a"), PathBuf::from("b")]);
    assert_eq!((options.server.id.as_str(), options.http.http_port), ("line", 3));
    assert_eq!(
        (options.grpc.address(), options.server.strict_readiness),
        (Address::tcp("0.0.0.0", 2), false)
    );
    assert!(!options.configurations.read_options().complete);
    // A list on the command line replaces that in the file.
    let options = parsed_with(&["--model-store=c", "--config-file", path], &[]).unwrap();
    assert_eq!(options.models.repositories(), [PathBuf::from("c")]);
    // In the environment, a list has one value per line.
    let options = parsed_with(&[], &[("NEREID_MODEL_REPOSITORY", "d\ne f\n")]).unwrap();
    assert_eq!(options.models.repositories(), [PathBuf::from("d"), PathBuf::from("e f")]);
}

#[test]
fn errors_in_other_sources_name_the_source() {
    let with_file = |text: &str| {
        let file = config_file(text);
        let path = file.path().to_str().unwrap().to_owned();
        let error = parsed_with(&["--model-repository=m", "--config-file", &path], &[]).unwrap_err();
        let error = error.strip_prefix("error: ").unwrap().replace(&path, "file");
        error.lines().next().unwrap().to_owned()
    };
    for (text, expected) in [
        ("id = 'x'\nhtpp-port = 1", "file:2: unknown option 'htpp-port'; did you mean 'http-port'?"),
        ("config-file = 'x'", "file:1: 'config-file' is not allowed in a configuration file"),
        ("id = ['a', 'b']", "file:1: id: expected one value, not a list"),
        ("[http]\nport = 1", "file:1: unknown option 'http'"),
        ("id = 1979-05-27", "file:1: id: must be a string, a number or a boolean, not a datetime"),
        (
            "http-port = 70000",
            "file:1: http-port: invalid value '70000' for '--http-port <PORT>': must be a port: a whole number from 0 to 65535, where 0 is any free port",
        ),
        (
            "disable-auto-complete-config = 'maybe'",
            "file:1: disable-auto-complete-config: must be true or false, not 'maybe'",
        ),
    ] {
        assert!(with_file(text).starts_with(expected), "{text}: {}", with_file(text));
    }
    assert!(with_file("\nid = ").starts_with("file:2: "));
    let error = parsed_with(&["--model-repository=m"], &[("NEREID_HTTP_PORT", "x")]).unwrap_err();
    assert!(
        error.starts_with("error: environment variable NEREID_HTTP_PORT: invalid value 'x' for"),
        "{error}"
    );
    let missing = parsed_with(&["--config-file=/no/such/file"], &[]).unwrap_err();
    assert!(missing.contains("cannot read the configuration file '/no/such/file'"), "{missing}");
    // What Kubernetes writes for a service called nereid-http is not an option.
    let service = [("NEREID_HTTP_PORT", "tcp://10.0.0.1:8000")];
    assert_eq!(parsed_with(&["--model-repository=m"], &service).unwrap().http.http_port, 8000);
}

#[test]
fn check_reads_its_options_from_the_servers_file() {
    let file = config_file("model-repository = 'served'\nhttp-port = 1\nmodel-config-name = 'h100'");
    let path = file.path().to_str().unwrap();
    let options = parsed_with(&["check", "a"], &[("NEREID_CONFIG_FILE", path)]).unwrap();
    let Some(Command::Check(check)) = options.command else { panic!("{options:?}") };
    assert_eq!(check.reading().config_name.as_deref(), Some("h100"));
    assert_eq!(check.repositories, [PathBuf::from("a")]);
}

#[test]
fn negative_number_after_a_space_is_the_value_of_its_option() {
    let outcome = |arguments: &[&str]| {
        let options = parsed_with(&[&["--model-repository=m"], arguments].concat(), &[]);
        options.map_or_else(|error| error, |options| format!("{options:?}"))
    };
    let command = Options::command();
    for option in declared(&command).filter(|option| !is_switch(option)) {
        let name = format!("--{}", option.get_long().unwrap());
        for value in ["-1", "-0.5"] {
            let joined = format!("{name}={value}");
            assert_eq!(outcome(&[&name, value]), outcome(&[&joined]), "{joined}");
        }
    }
}
