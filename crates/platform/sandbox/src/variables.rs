//! The variables that a confined process inherits: the server's may hold keys of clouds, hubs and registries.

use std::ffi::OsString;

/// Names of variables without secrets.
const NAMES: &[&str] = &[
    "HOME",
    "HOSTNAME",
    "LANG",
    "LANGUAGE",
    "LOGNAME",
    "PATH",
    "PWD",
    "SHELL",
    "TERM",
    "TZ",
    "TZDIR",
    "USER",
    "VIRTUAL_ENV",
];

/// How the names of variables begin that configure the C library, interpreters, frameworks and drivers.
const PREFIXES: &[&str] = &[
    "BLIS_",
    "CONDA_",
    "CUBLAS_",
    "CUDA_",
    "CUDNN_",
    "CUFILE_",
    "GGML_",
    "GOMP_",
    "INTEL_",
    "KMP_",
    "LC_",
    "LD_",
    "MALLOC_",
    "MIMALLOC_",
    "MKL_",
    "NCCL_",
    "NUMBA_",
    "NUMEXPR_",
    "NVIDIA_",
    "OMP_",
    "ONNXRUNTIME_",
    "OPENBLAS_",
    "OPENVINO_",
    "ORT_",
    "OV_",
    "PYTHON",
    "PYTORCH_",
    "TBB_",
    "TF_",
    "TOKENIZERS_",
    "TORCH_",
    "VECLIB_",
    "XLA_",
];

/// Parts of the names of variables with secrets.
const SECRETS: &[&str] = &["CREDENTIAL", "KEY", "PASSWD", "PASSWORD", "SECRET", "TOKEN"];

/// The variables among these that the process does not inherit.
pub(crate) fn withheld(names: impl Iterator<Item = OsString>, allowed: &[String]) -> Vec<OsString> {
    names.filter(|name| !name.to_str().is_some_and(|name| is_inherited(name, allowed))).collect()
}

fn is_inherited(name: &str, allowed: &[String]) -> bool {
    let is_known = || NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    // A part of a name, so that TOKENIZERS_PARALLELISM holds no token.
    let is_secret = || name.split('_').any(|part| SECRETS.contains(&part));
    allowed.iter().any(|allowed| allowed == name) || is_known() && !is_secret()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_with_secrets_are_withheld_unless_the_policy_names_them() {
        let allowed = ["HF_TOKEN".to_owned()];
        for (name, inherited, named) in [
            ("PATH", true, true),
            ("LC_ALL", true, true),
            ("LD_LIBRARY_PATH", true, true),
            ("CUDA_VISIBLE_DEVICES", true, true),
            ("TOKENIZERS_PARALLELISM", true, true),
            ("HF_TOKEN", false, true),
            ("AWS_SECRET_ACCESS_KEY", false, false),
            ("AZURE_STORAGE_ACCOUNT", false, false),
            ("TF_API_KEY", false, false),
            ("PATHS", false, false),
        ] {
            assert_eq!(is_inherited(name, &[]), inherited, "{name}");
            assert_eq!(is_inherited(name, &allowed), named, "{name}");
            let withheld = withheld([OsString::from(name)].into_iter(), &[]);
            assert_eq!(withheld.is_empty(), inherited, "{name}");
        }
    }
}
