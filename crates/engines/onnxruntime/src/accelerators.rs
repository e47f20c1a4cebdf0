//! Execution accelerators of a configuration: ONNX Runtime's providers other than the CPU's.
//!
//! A configuration that requests a provider that the library lacks is refused. Names and parameters are the same as
//! in Triton's backend.

use std::collections::BTreeMap;

use nereid_backend_api::{Error, InstanceKind, ModelConfig, Result};
use nereid_model_config::proto::ModelInstanceGroup;
use nereid_model_config::proto::model_instance_group::Kind;
use nereid_model_config::proto::model_optimization_policy::execution_accelerators::Accelerator;
use ort::ep::{self, ArbitrarilyConfigurableExecutionProvider, ExecutionProviderDispatch};

/// Runs on NVIDIA GPUs.
pub(crate) const CUDA: &str = "CUDAExecutionProvider";
const TENSORRT: &str = "TensorrtExecutionProvider";
const OPENVINO: &str = "OpenVINOExecutionProvider";

/// Options of a provider, in the provider's names.
type Options = BTreeMap<String, String>;

/// The providers for a model's instances, in order of preference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Accelerators {
    /// For instances on a GPU: TensorRT's options, if configured.
    tensorrt: Option<Options>,
    /// For instances on a GPU: CUDA's options. CUDA always runs there.
    cuda: Options,
    /// For instances on the CPU.
    openvino: Option<Options>,
    /// Whether the library has CUDA.
    has_cuda: bool,
    /// The library's providers, for messages.
    available: String,
}

impl Accelerators {
    /// The accelerators of a configuration.
    ///
    /// # Errors
    /// `InvalidArg` for an unknown accelerator or parameter, `Unsupported` for an accelerator that is not
    /// among the library's `providers`.
    pub(crate) fn of(config: &ModelConfig, providers: &[String]) -> Result<Self> {
        let mut found = Self {
            has_cuda: providers.iter().any(|provider| provider == CUDA),
            available: providers.join(", "),
            ..Self::default()
        };
        let optimization = config.optimization.as_ref();
        let Some(asked) = optimization.and_then(|optimization| optimization.execution_accelerators.as_ref())
        else {
            return Ok(found);
        };
        let has = |accelerator: &Accelerator, provider: &str| {
            if providers.iter().any(|available| available == provider) {
                return Ok(());
            }
            Err(Error::unsupported(format!(
                "the configuration asks for the execution accelerator '{}', which is {provider}, but this ONNX \
                 Runtime has only {}",
                accelerator.name,
                providers.join(", ")
            )))
        };
        for accelerator in &asked.gpu_execution_accelerator {
            match accelerator.name.as_str() {
                "tensorrt" => {
                    has(accelerator, TENSORRT)?;
                    found.tensorrt = Some(tensorrt_options(accelerator)?);
                }
                "cuda" => {
                    has(accelerator, CUDA)?;
                    found.cuda.extend(options(accelerator)?);
                }
                other => return Err(unknown(other, "gpu", &["tensorrt", "cuda"])),
            }
        }
        for accelerator in &asked.cpu_execution_accelerator {
            match accelerator.name.as_str() {
                "openvino" => {
                    has(accelerator, OPENVINO)?;
                    found.openvino = Some(options(accelerator)?);
                }
                other => return Err(unknown(other, "cpu", &["openvino"])),
            }
        }
        Ok(found)
    }

    /// The providers that the instances of a model use besides the CPU's, in parentheses after a space.
    pub(crate) fn describe(&self, config: &ModelConfig) -> String {
        let kinds: Vec<_> = config.instance_group.iter().map(ModelInstanceGroup::kind).collect();
        let on_gpu = kinds.contains(&Kind::Gpu);
        let on_cpu = kinds.is_empty() || kinds.iter().any(|kind| *kind != Kind::Gpu);
        let names = [
            (on_gpu && self.tensorrt.is_some(), "TensorRT"),
            (on_gpu, "CUDA"),
            (on_cpu && self.openvino.is_some(), "OpenVINO"),
        ];
        let names: Vec<_> = names.iter().filter(|(is_used, _)| *is_used).map(|(_, name)| *name).collect();
        if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) }
    }

    /// The providers for an instance.
    ///
    /// # Errors
    /// `Unsupported` for an instance on a GPU if the library has no provider for it.
    pub(crate) fn for_kind(&self, kind: InstanceKind) -> Result<Vec<ExecutionProviderDispatch>> {
        let mut providers = Vec::new();
        if let InstanceKind::Gpu(device) = kind {
            if !self.has_cuda {
                return Err(Error::unsupported(format!(
                    "the instance is configured to run on {kind}, but this ONNX Runtime has only {}",
                    self.available
                )));
            }
            if let Some(options) = &self.tensorrt {
                let provider =
                    configured(ep::TensorRT::default(), options).with_arbitrary_config("device_id", device);
                providers.push(provider.build().error_on_failure());
            }
            let provider =
                configured(ep::CUDA::default(), &self.cuda).with_arbitrary_config("device_id", device);
            providers.push(provider.build().error_on_failure());
        } else if let Some(options) = &self.openvino {
            let provider = ep::OpenVINO::default().with_device_type("CPU");
            providers.push(configured(provider, options).build().error_on_failure());
        }
        Ok(providers)
    }
}

fn configured<P: ArbitrarilyConfigurableExecutionProvider>(provider: P, options: &Options) -> P {
    options.iter().fold(provider, |provider, (key, value)| provider.with_arbitrary_config(key, value))
}

/// The parameters as they are.
fn options(accelerator: &Accelerator) -> Result<Options> {
    for (key, value) in &accelerator.parameters {
        if key.contains('\0') || value.contains('\0') {
            return Err(Error::invalid_arg(format!(
                "a parameter of the execution accelerator '{}' contains a zero byte",
                accelerator.name
            )));
        }
    }
    let parameters = accelerator.parameters.iter().map(|(key, value)| (key.clone(), value.clone()));
    Ok(parameters.collect())
}

/// TensorRT's parameters. The oldest have names of Triton's own.
fn tensorrt_options(accelerator: &Accelerator) -> Result<Options> {
    let mut translated = Options::new();
    for (key, value) in options(accelerator)? {
        let key = match (key.as_str(), value.as_str()) {
            ("precision_mode", "FP32") => continue,
            ("precision_mode", mode @ ("FP16" | "BF16" | "INT8")) => {
                translated.insert(format!("trt_{}_enable", mode.to_ascii_lowercase()), "1".to_owned());
                continue;
            }
            ("precision_mode", other) => {
                return Err(Error::invalid_arg(format!(
                    "parameter 'precision_mode' of the execution accelerator 'tensorrt' is '{other}', but takes FP32, \
                     FP16, BF16 or INT8"
                )));
            }
            ("max_workspace_size_bytes", _) => "trt_max_workspace_size".to_owned(),
            ("int8_calibration_table_name" | "int8_use_native_calibration_table", _) => format!("trt_{key}"),
            (own, _) if own.starts_with("trt_") => key,
            (other, _) => {
                return Err(Error::invalid_arg(format!(
                    "the execution accelerator 'tensorrt' has no parameter '{other}'"
                )));
            }
        };
        translated.insert(key, value);
    }
    Ok(translated)
}

fn unknown(name: &str, place: &str, known: &[&str]) -> Error {
    Error::invalid_arg(format!(
        "'{name}' is not a {place}_execution_accelerator of this backend, which knows {}",
        known.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use nereid_model_config::proto::ModelOptimizationPolicy;
    use nereid_model_config::proto::model_optimization_policy::ExecutionAccelerators;

    use super::*;

    fn accelerator(name: &str, parameters: &[(&str, &str)]) -> Accelerator {
        let parameters = parameters.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        Accelerator { name: name.to_owned(), parameters }
    }

    fn accelerators(gpu: &[Accelerator], cpu: &[Accelerator], providers: &[&str]) -> Result<Accelerators> {
        let execution_accelerators = Some(ExecutionAccelerators {
            gpu_execution_accelerator: gpu.to_vec(),
            cpu_execution_accelerator: cpu.to_vec(),
        });
        let optimization =
            Some(ModelOptimizationPolicy { execution_accelerators, ..ModelOptimizationPolicy::default() });
        let providers: Vec<_> = providers.iter().map(|&name| name.to_owned()).collect();
        Accelerators::of(&ModelConfig { optimization, ..ModelConfig::default() }, &providers)
    }

    #[test]
    fn an_accelerator_that_the_library_lacks_is_refused_with_those_it_has() {
        for (gpu, cpu, provider) in [
            (vec![accelerator("cuda", &[])], vec![], CUDA),
            (vec![accelerator("tensorrt", &[])], vec![], TENSORRT),
            (vec![], vec![accelerator("openvino", &[])], OPENVINO),
        ] {
            let error =
                accelerators(&gpu, &cpu, &["AzureExecutionProvider", "CPUExecutionProvider"]).unwrap_err();
            let has = "has only AzureExecutionProvider, CPUExecutionProvider";
            assert!(error.message().contains(provider) && error.message().ends_with(has), "{error}");
        }
    }

    #[test]
    fn an_accelerator_that_nobody_knows_is_refused() {
        let error = accelerators(&[accelerator("openvino", &[])], &[], &[OPENVINO]).unwrap_err();
        assert!(error.message().starts_with("'openvino' is not a gpu_execution_accelerator"), "{error}");
        let error = accelerators(&[], &[accelerator("cuda", &[])], &[CUDA]).unwrap_err();
        assert!(error.message().starts_with("'cuda' is not a cpu_execution_accelerator"), "{error}");
    }

    #[test]
    fn tensorrt_has_parameters_of_tritons_names() {
        let given = [
            ("precision_mode", "FP16"),
            ("max_workspace_size_bytes", "1024"),
            ("int8_calibration_table_name", "table"),
            ("trt_engine_cache_enable", "1"),
        ];
        let found = accelerators(&[accelerator("tensorrt", &given)], &[], &[TENSORRT]).unwrap();
        let expected = [
            ("trt_engine_cache_enable", "1"),
            ("trt_fp16_enable", "1"),
            ("trt_int8_calibration_table_name", "table"),
            ("trt_max_workspace_size", "1024"),
        ];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(found.tensorrt, Some(Options::from(expected)));
        for wrong in [("precision_mode", "FP8"), ("workspace", "1"), ("trt_a", "\0")] {
            assert!(
                accelerators(&[accelerator("tensorrt", &[wrong])], &[], &[TENSORRT]).is_err(),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn providers_are_named_by_the_instances_that_use_them() {
        let (none, tensorrt, openvino) =
            (vec![], vec![accelerator("tensorrt", &[])], vec![accelerator("openvino", &[])]);
        for (gpu, cpu, kinds, expected) in [
            (&none, &none, &[][..], ""),
            (&none, &none, &[Kind::Cpu], ""),
            (&none, &none, &[Kind::Gpu], " (CUDA)"),
            (&tensorrt, &openvino, &[Kind::Gpu], " (TensorRT, CUDA)"),
            (&tensorrt, &openvino, &[Kind::Cpu], " (OpenVINO)"),
            (&none, &openvino, &[], " (OpenVINO)"),
            (&tensorrt, &openvino, &[Kind::Gpu, Kind::Cpu], " (TensorRT, CUDA, OpenVINO)"),
        ] {
            let found = accelerators(gpu, cpu, &[CUDA, TENSORRT, OPENVINO]).unwrap();
            let group =
                |kind: &Kind| ModelInstanceGroup { kind: *kind as i32, ..ModelInstanceGroup::default() };
            let instance_group = kinds.iter().map(group).collect();
            let config = ModelConfig { instance_group, ..ModelConfig::default() };
            assert_eq!(found.describe(&config), expected, "{kinds:?}");
        }
    }

    #[test]
    fn an_instance_on_a_gpu_takes_a_library_that_can_use_it() {
        let found = accelerators(&[], &[], &["CPUExecutionProvider"]).unwrap();
        let error = found.for_kind(InstanceKind::Gpu(0)).unwrap_err();
        assert!(
            error.message().contains("run on GPU device 0, but this ONNX Runtime has only CPU"),
            "{error}"
        );
        assert!(found.for_kind(InstanceKind::Cpu).unwrap().is_empty());
    }
}
