//! The end of a start on a terminal: the models with where they run, and the addresses of the server.

use nereid_assembly::RunningServer;
use nereid_core::VersionState;
use nereid_core::model_config::proto::ModelInstanceGroup;
use nereid_core::model_config::proto::model_instance_group::Kind;
use nereid_core::model_config::{ModelConfig, backend_name, platform_name};
use nereid_net::listener::LocalAddress;

use crate::run::status;

/// The most characters on a line of a cell.
const CELL_WIDTH: usize = 60;

/// Logs a table of models, and the addresses.
pub(crate) fn show(running: &RunningServer) {
    let wrap = |text: &str| nereid_check::wrap_cell(text, CELL_WIDTH);
    let rows: Vec<_> = running
        .server()
        .models()
        .index()
        .map(|model| {
            let version = model.version.map_or_else(|| "-".to_owned(), |version| version.to_string());
            let (engine, devices) = match &model.state {
                VersionState::Ready(ready) => {
                    (ready.engine().unwrap_or_else(|| engine(ready.config())), devices(ready.config()))
                }
                _ => (String::new(), String::new()),
            };
            [wrap(&model.id.to_string()), version, wrap(&status(&model)), wrap(&engine), wrap(&devices)]
        })
        .collect();
    let table = nereid_check::draw_table(["Model", "Version", "Status", "Engine", "Devices"], &rows);
    let mut addresses: Vec<_> = running.addresses().collect();
    // Browsers and first requests go to HTTP.
    addresses.sort_by_key(|(protocol, _)| *protocol != "HTTP");
    let addresses =
        addresses.into_iter().map(|(protocol, address)| format!("{protocol} on {}", reachable(&address)));
    let addresses: Vec<_> = addresses.collect();
    tracing::info!(log.table = true, "{table}");
    tracing::info!("serving {}", addresses.join(", "));
}

/// The backend of a model, or its platform.
fn engine(config: &ModelConfig) -> String {
    let name = backend_name(config).unwrap_or_else(|| platform_name(config));
    name.to_owned()
}

/// The instances of a model by device: `2 CPU, 1 GPU 0`.
fn devices(config: &ModelConfig) -> String {
    config.instance_group.iter().filter(|group| !group.passive).map(device).collect::<Vec<_>>().join(", ")
}

fn device(group: &ModelInstanceGroup) -> String {
    let kind = match group.kind() {
        Kind::Gpu => "GPU",
        Kind::Cpu => "CPU",
        Kind::Model => "chosen by the model",
        Kind::Auto => "any",
    };
    let gpus: Vec<_> = group.gpus.iter().map(i32::to_string).collect();
    // `count` is per GPU.
    let count = group.count.max(0) as usize * gpus.len().max(1);
    format!("{count} {kind} {}", gpus.join(" ")).trim_end().to_owned()
}

/// An address that clients of this machine can open: servers listen on all addresses by default.
fn reachable(address: &LocalAddress) -> String {
    match address.tcp().filter(|address| address.ip().is_unspecified()) {
        Some(everywhere) => format!("localhost:{}", everywhere.port()),
        None => address.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use nereid_core::model_config::parse_text;

    use super::*;

    #[test]
    fn instances_are_counted_by_device() {
        for (groups, expected) in [
            ("", ""),
            ("instance_group { count: 2 kind: KIND_CPU }", "2 CPU"),
            ("instance_group { count: 1 kind: KIND_GPU gpus: [ 0, 1 ] }", "2 GPU 0 1"),
            (
                "instance_group { count: 1 kind: KIND_CPU } instance_group { count: 3 kind: KIND_MODEL }",
                "1 CPU, 3 chosen by the model",
            ),
            ("instance_group { count: 1 kind: KIND_CPU passive: true }", ""),
        ] {
            assert_eq!(devices(&parse_text(groups).unwrap()), expected, "{groups}");
        }
    }

    #[test]
    fn engine_is_the_backend_or_the_platform() {
        for (text, expected) in [
            ("backend: 'python'", "python"),
            ("platform: 'onnxruntime_onnx'", "onnxruntime"),
            ("platform: 'ensemble'", "ensemble"),
        ] {
            assert_eq!(engine(&parse_text(text).unwrap()), expected);
        }
    }

    #[test]
    fn addresses_can_be_opened_on_this_machine() {
        for (address, expected) in [
            ("0.0.0.0:8000", "localhost:8000"),
            ("[::]:8001", "localhost:8001"),
            ("10.0.0.7:8002", "10.0.0.7:8002"),
            ("[::1]:8000", "[::1]:8000"),
        ] {
            assert_eq!(reachable(&LocalAddress::Tcp(address.parse().unwrap())), expected);
        }
    }
}
