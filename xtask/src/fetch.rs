//! Fetches files that the repository does not contain: libraries of frameworks, and the models of the fetched examples.
//!
//! Everything is downloaded as packages, of PyPI through pip and of npm through npm, so the machine's configured registries
//! apply. Every package is pinned by digest.

pub mod llama_server;

use std::env::consts;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;

use crate::package::wheel;
use crate::project::{Project, show};
use crate::test::end_to_end_environment;
use crate::venv::Venv;

/// The files to fetch.
#[derive(Clone, Copy, Debug, Subcommand)]
pub enum Fetch {
    /// The library of ONNX Runtime, into the folder where the built server looks for backends
    Onnxruntime,
    /// The library of OpenVINO, into the same folder
    Openvino,
    /// The library of TensorFlow, into the same folder
    Tensorflow,
    /// The library of PyTorch with its headers, into the same folder
    Pytorch,
    /// The library of llama.cpp, into the same folder. Needs npm
    Llamacpp,
    /// llama.cpp's own server, to measure it beside Nereid. Built from sources: needs a compiler for C++
    LlamaServer,
    /// The models of examples/fetched_repository
    Examples,
    /// Everything for the end-to-end tests, including their Python environments
    Tests,
}

/// One file in a registry.
struct Package {
    /// Name and version: of PyPI as `name==version`, of npm as `name@version`.
    requirement: &'static str,
    sha256: &'static str,
    /// The file's platform; `any` for all platforms.
    platform: &'static str,
    /// Paths in the package and where they go, relative to the target. Paths of folders end in `/`.
    files: &'static [(&'static str, &'static str)],
}

/// A framework whose library can be fetched.
struct Framework {
    /// The folder for it among the backends.
    backend: &'static str,
    /// The alternative on a platform without a package.
    remedy: &'static str,
    /// The packages for each platform that has them, by the names of Rust.
    packages: &'static [(&'static str, &'static str, &'static [Package])],
}

const ONNX_RUNTIME_FILES: &[(&str, &str)] = &[
    ("onnxruntime/LICENSE", "LICENSE"),
    ("onnxruntime/ThirdPartyNotices.txt", "ThirdPartyNotices.txt"),
    ("onnxruntime/capi/libonnxruntime.so.1.31.1", "libonnxruntime.so.1.31.1"),
    ("onnxruntime/capi/libonnxruntime_providers_shared.so", "libonnxruntime_providers_shared.so"),
];

const ONNX_RUNTIME: Framework = Framework {
    backend: "onnxruntime",
    remedy: "install one and name it in the variable ORT_DYLIB_PATH",
    packages: &[
        (
            "linux",
            "x86_64",
            &[Package {
                requirement: "onnxruntime==1.31.1",
                sha256: "5752bd508126ae7c49894d3b9d2e83f0c3d487319246d04c444b393308d7ad7f",
                platform: "manylinux_2_28_x86_64",
                files: ONNX_RUNTIME_FILES,
            }],
        ),
        (
            "linux",
            "aarch64",
            &[Package {
                requirement: "onnxruntime==1.31.1",
                sha256: "da05378364c44d4407e463982d2bf8d5e4cfea873283757e48beeb41df97b7f3",
                platform: "manylinux_2_28_aarch64",
                files: ONNX_RUNTIME_FILES,
            }],
        ),
    ],
};

/// OpenVINO for the CPU, with all its readers of models.
const OPENVINO: Framework = Framework {
    backend: "openvino",
    remedy: "install one and name it with --backend-config=openvino,library=PATH",
    packages: &[(
        "linux",
        "x86_64",
        &[Package {
            requirement: "openvino==2026.4.1",
            sha256: "2d22b1da03f7caf74df30e9f6417d0ab2f637e4a38e08e1dcd294d2c37407aaf",
            platform: "manylinux_2_28_x86_64",
            files: &[
                ("openvino-2026.4.1.dist-info/licenses/LICENSE", "LICENSE"),
                ("openvino/libs/libhwloc.so.15", "libhwloc.so.15"),
                ("openvino/libs/libopenvino.so.2641", "libopenvino.so.2641"),
                ("openvino/libs/libopenvino_auto_batch_plugin.so", "libopenvino_auto_batch_plugin.so"),
                ("openvino/libs/libopenvino_auto_plugin.so", "libopenvino_auto_plugin.so"),
                ("openvino/libs/libopenvino_c.so.2641", "libopenvino_c.so.2641"),
                ("openvino/libs/libopenvino_hetero_plugin.so", "libopenvino_hetero_plugin.so"),
                ("openvino/libs/libopenvino_intel_cpu_plugin.so", "libopenvino_intel_cpu_plugin.so"),
                ("openvino/libs/libopenvino_ir_frontend.so.2641", "libopenvino_ir_frontend.so.2641"),
                ("openvino/libs/libopenvino_onnx_frontend.so.2641", "libopenvino_onnx_frontend.so.2641"),
                ("openvino/libs/libopenvino_paddle_frontend.so.2641", "libopenvino_paddle_frontend.so.2641"),
                (
                    "openvino/libs/libopenvino_pytorch_frontend.so.2641",
                    "libopenvino_pytorch_frontend.so.2641",
                ),
                (
                    "openvino/libs/libopenvino_tensorflow_frontend.so.2641",
                    "libopenvino_tensorflow_frontend.so.2641",
                ),
                (
                    "openvino/libs/libopenvino_tensorflow_lite_frontend.so.2641",
                    "libopenvino_tensorflow_lite_frontend.so.2641",
                ),
                ("openvino/libs/libtbb.so.12", "libtbb.so.12"),
                ("openvino/libs/libtbbbind_2_5.so.3", "libtbbbind_2_5.so.3"),
                ("openvino/libs/libtbbmalloc.so.2", "libtbbmalloc.so.2"),
            ],
        }],
    )],
};

/// TensorFlow for the CPU: its libraries alone.
const TENSORFLOW: Framework = Framework {
    backend: "tensorflow",
    remedy: "install one and name it with --backend-config=tensorflow,library=PATH",
    packages: &[(
        "linux",
        "x86_64",
        &[Package {
            requirement: "tensorflow-cpu==2.21.0",
            sha256: "2b847d217b02ee7731ed91431daf3250daa0196c3c94614d23be27232e6e5b6c",
            platform: "manylinux_2_27_x86_64",
            files: &[
                ("tensorflow/include/LICENSE", "LICENSE"),
                ("tensorflow/libtensorflow_cc.so.2", "libtensorflow_cc.so.2"),
                ("tensorflow/libtensorflow_framework.so.2", "libtensorflow_framework.so.2"),
            ],
        }],
    )],
};

/// PyTorch for the CPU: what is needed of libtorch, and the headers for the shim that the server compiles. The package is
/// built for CUDA, of which libtorch needs two small libraries.
const PYTORCH: Framework = Framework {
    backend: "pytorch",
    remedy: "install one and name it with --backend-config=pytorch,library=PATH",
    packages: &[(
        "linux",
        "x86_64",
        &[
            Package {
                requirement: "torch==2.15.0",
                sha256: "48c2d861134c0b5697c7602cb5ffa68f62a2989fdcd1717e593356f67996ca1e",
                platform: "manylinux_2_28_x86_64",
                files: &[
                    ("torch-2.15.0.dist-info/licenses/", "licenses/torch/"),
                    ("torch/include/", "include/"),
                    ("torch/lib/libc10.so", "libc10.so"),
                    ("torch/lib/libgomp.so.1", "libgomp.so.1"),
                    ("torch/lib/libtorch_cpu.so", "libtorch_cpu.so"),
                ],
            },
            Package {
                requirement: "nvidia-cuda-runtime==13.2.86",
                sha256: "3498247680dfddce31bad102af7e3e26fc795342a3cac64722bb0fa95e7f60f0",
                platform: "manylinux_2_17_x86_64",
                files: &[
                    ("nvidia_cuda_runtime-13.2.86.dist-info/licenses/", "licenses/nvidia-cuda-runtime/"),
                    ("nvidia/cu13/lib/libcudart.so.13", "libcudart.so.13"),
                ],
            },
            Package {
                requirement: "nvidia-cuda-cupti==13.2.86",
                sha256: "8fa29f15dd8336181f961764d9d95236fc6b931dd0c8fcf8cd70aab0c310b586",
                platform: "manylinux_2_25_x86_64",
                files: &[
                    ("nvidia_cuda_cupti-13.2.86.dist-info/licenses/", "licenses/nvidia-cuda-cupti/"),
                    ("nvidia/cu13/lib/libcupti.so.13", "libcupti.so.13"),
                ],
            },
        ],
    )],
};

/// llama.cpp for the CPU, with its code for all processors.
const LLAMA_CPP: Framework = Framework {
    backend: "llamacpp",
    remedy: "install one and name it with --backend-config=llamacpp,library=PATH",
    packages: &[
        (
            "linux",
            "x86_64",
            &[Package {
                requirement: "@node-llama-cpp/linux-x64@3.22.1",
                sha256: "0d953e1503d5ab4608d8ed5b739132308c81ac05ffeb760d2a7f30e08a9f90e0",
                platform: "any",
                files: &[
                    ("package/LICENSE", "LICENSE"),
                    ("package/bins/linux-x64/libggml-base.so", "libggml-base.so"),
                    ("package/bins/linux-x64/libggml-cpu-alderlake.so", "libggml-cpu-alderlake.so"),
                    ("package/bins/linux-x64/libggml-cpu-cannonlake.so", "libggml-cpu-cannonlake.so"),
                    ("package/bins/linux-x64/libggml-cpu-cascadelake.so", "libggml-cpu-cascadelake.so"),
                    ("package/bins/linux-x64/libggml-cpu-cooperlake.so", "libggml-cpu-cooperlake.so"),
                    ("package/bins/linux-x64/libggml-cpu-haswell.so", "libggml-cpu-haswell.so"),
                    ("package/bins/linux-x64/libggml-cpu-icelake.so", "libggml-cpu-icelake.so"),
                    ("package/bins/linux-x64/libggml-cpu-ivybridge.so", "libggml-cpu-ivybridge.so"),
                    ("package/bins/linux-x64/libggml-cpu-piledriver.so", "libggml-cpu-piledriver.so"),
                    ("package/bins/linux-x64/libggml-cpu-sandybridge.so", "libggml-cpu-sandybridge.so"),
                    ("package/bins/linux-x64/libggml-cpu-sapphirerapids.so", "libggml-cpu-sapphirerapids.so"),
                    ("package/bins/linux-x64/libggml-cpu-skylakex.so", "libggml-cpu-skylakex.so"),
                    ("package/bins/linux-x64/libggml-cpu-sse42.so", "libggml-cpu-sse42.so"),
                    ("package/bins/linux-x64/libggml-cpu-x64.so", "libggml-cpu-x64.so"),
                    ("package/bins/linux-x64/libggml-cpu-zen4.so", "libggml-cpu-zen4.so"),
                    ("package/bins/linux-x64/libggml.v0.5.0.so", "libggml.v0.5.0.so"),
                    ("package/bins/linux-x64/libllama.v0.5.0.so", "libllama.v0.5.0.so"),
                ],
            }],
        ),
        (
            "linux",
            "aarch64",
            &[Package {
                requirement: "@node-llama-cpp/linux-arm64@3.22.1",
                sha256: "39c76b998e35ed2f236c01472fc79eda0fc558b1c8b535023c2d7ded8c327cc4",
                platform: "any",
                files: &[
                    ("package/LICENSE", "LICENSE"),
                    ("package/bins/linux-arm64/libggml-base.so", "libggml-base.so"),
                    ("package/bins/linux-arm64/libggml-cpu-armv8.0_1.so", "libggml-cpu-armv8.0_1.so"),
                    ("package/bins/linux-arm64/libggml-cpu-armv8.2_1.so", "libggml-cpu-armv8.2_1.so"),
                    ("package/bins/linux-arm64/libggml-cpu-armv8.2_2.so", "libggml-cpu-armv8.2_2.so"),
                    ("package/bins/linux-arm64/libggml-cpu-armv8.2_3.so", "libggml-cpu-armv8.2_3.so"),
                    ("package/bins/linux-arm64/libggml-cpu-armv8.6_1.so", "libggml-cpu-armv8.6_1.so"),
                    ("package/bins/linux-arm64/libggml-cpu-armv8.6_2.so", "libggml-cpu-armv8.6_2.so"),
                    ("package/bins/linux-arm64/libggml-cpu-armv9.2_1.so", "libggml-cpu-armv9.2_1.so"),
                    ("package/bins/linux-arm64/libggml-cpu-armv9.2_2.so", "libggml-cpu-armv9.2_2.so"),
                    ("package/bins/linux-arm64/libggml.v0.5.0.so", "libggml.v0.5.0.so"),
                    ("package/bins/linux-arm64/libllama.v0.5.0.so", "libllama.v0.5.0.so"),
                ],
            }],
        ),
    ],
};

const EXAMPLES: &[Package] = &[
    Package {
        requirement: "rapidocr-onnxruntime==1.4.4",
        sha256: "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
        platform: "any",
        files: &[
            ("rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", "text_detector/1/model.onnx"),
            ("rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", "text_recogniser/1/model.onnx"),
            (
                "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
                "text_direction/1/model.onnx",
            ),
        ],
    },
    Package {
        requirement: "silero-vad==6.2.3",
        sha256: "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
        platform: "any",
        files: &[
            ("silero_vad/data/silero_vad.onnx", "speech_detector/1/model.onnx"),
            ("silero_vad/data/silero_vad_16k_sequence.onnx", "speech_stream/1/model.onnx"),
        ],
    },
    Package {
        requirement: "magika==1.0.3",
        sha256: "938d8e033953f2ddeb8c35dc423aa289ca116bfa7a71a778f6e77460f9025803",
        platform: "any",
        files: &[
            ("magika/models/standard_v3_3/model.onnx", "file_type/1/model.onnx"),
            ("magika/models/standard_v3_3/config.min.json", "file_type/magika.json"),
        ],
    },
];

/// The folder with the configurations of the fetched examples. Their models go there too.
const EXAMPLES_FOLDER: &str = "examples/fetched_repository";

/// Files that the examples need in addition to the packages.
const LABELS: &[&str] = &["file_type/labels.txt", "text_recogniser/characters.txt"];

/// Fetches, unless everything is present.
pub fn run(project: &Project, fetch: Fetch) -> Result<()> {
    match fetch {
        Fetch::Onnxruntime => library(project, &ONNX_RUNTIME),
        Fetch::Openvino => library(project, &OPENVINO),
        Fetch::Tensorflow => library(project, &TENSORFLOW),
        Fetch::Pytorch => library(project, &PYTORCH),
        Fetch::Llamacpp => library(project, &LLAMA_CPP),
        Fetch::LlamaServer => llama_server::build(project).map(drop),
        Fetch::Examples => examples(project),
        Fetch::Tests => tests(project),
    }
}

/// Fetches what the end-to-end tests need.
fn tests(project: &Project) -> Result<()> {
    examples(project)?;
    wheel::tools(project)?;
    show(&mut end_to_end_environment(project)?.command(project, &["tests/end_to_end/support/prepare.py"]))
}

/// Folder of ONNX Runtime's library, where the built server looks for backends.
pub fn library_folder(project: &Project) -> PathBuf {
    folder_of(project, &ONNX_RUNTIME)
}

fn folder_of(project: &Project, framework: &Framework) -> PathBuf {
    project.target.join("backends").join(framework.backend)
}

fn library(project: &Project, framework: &Framework) -> Result<()> {
    let packages = packages_for(framework, consts::OS, consts::ARCH)?;
    let target = folder_of(project, framework);
    for package in packages {
        fetch(project, package, &target)?;
        println!("{} is in {}", package.requirement, target.display());
    }
    Ok(())
}

fn packages_for(framework: &Framework, os: &str, arch: &str) -> Result<&'static [Package]> {
    let found = framework.packages.iter().find(|(its_os, its_arch, _)| (*its_os, *its_arch) == (os, arch));
    let Some((.., packages)) = found else {
        bail!("no library is known for {os} on {arch}; {}", framework.remedy);
    };
    Ok(packages)
}

/// Fetches the models of the examples.
pub fn examples(project: &Project) -> Result<()> {
    let target = project.root.join(EXAMPLES_FOLDER);
    for package in EXAMPLES {
        fetch(project, package, &target)?;
    }
    if !LABELS.iter().all(|name| target.join(name).is_file()) {
        show(tools(project)?.command(project, &["examples/training/write_labels.py"]).arg(&target))?;
    }
    println!("the models of {EXAMPLES_FOLDER} are present");
    Ok(())
}

/// Unpacks a package's files below `target`, unless they are present.
fn fetch(project: &Project, package: &Package, target: &Path) -> Result<()> {
    if package.files.iter().all(|(_, name)| target.join(name).exists()) {
        return Ok(());
    }
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let unpacked = folder.path().join("unpacked");
    if package.requirement.contains("==") {
        unpack_from_pypi(project, package, folder.path(), &unpacked)?;
    } else {
        unpack_from_npm(project, package, folder.path(), &unpacked)?;
    }
    for (from, to) in package.files {
        let (is_folder, to) = (to.ends_with('/'), target.join(to.trim_end_matches('/')));
        fs::create_dir_all(to.parent().unwrap_or(target))?;
        // Copied under another name first, so that a partial copy is never used.
        let part = to.with_extension("part");
        let copied = if is_folder {
            copy_folder(&unpacked.join(from), &part)
        } else {
            fs::copy(unpacked.join(from), &part).map(|_| ())
        };
        copied.with_context(|| format!("{} has no file {from}", package.requirement))?;
        fs::rename(&part, &to)?;
    }
    Ok(())
}

/// Downloads a package of PyPI to a folder, and unpacks it.
fn unpack_from_pypi(project: &Project, package: &Package, folder: &Path, unpacked: &Path) -> Result<()> {
    let pinned = folder.join("requirements.txt");
    fs::write(&pinned, format!("{} --hash=sha256:{}\n", package.requirement, package.sha256))?;
    let tools = tools(project)?;
    // The platform and Python version are pinned, so that every machine downloads the same file.
    let pip =
        ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"];
    let file = ["--only-binary=:all:", "--python-version=3.11", "--platform", package.platform];
    show(
        tools.command(project, &pip).args(file).arg("--dest").arg(folder).arg("--requirement").arg(&pinned),
    )?;
    show(tools.command(project, &["-m", "zipfile", "-e"]).arg(archive(folder, "whl")?).arg(unpacked))
}

/// Checks the digest of an archive, and unpacks it: archive, digest and target are its arguments.
const CHECK_AND_UNPACK: &str = "
import hashlib, sys, tarfile
archive, digest, target = sys.argv[1:]
with open(archive, 'rb') as file:
    found = hashlib.file_digest(file, 'sha256').hexdigest()
if found != digest:
    sys.exit(f'{archive} has digest {found}, expected {digest}')
with tarfile.open(archive) as tar:
    tar.extractall(target, filter='data')
";

/// Downloads a package of npm to a folder, and unpacks it.
fn unpack_from_npm(project: &Project, package: &Package, folder: &Path, unpacked: &Path) -> Result<()> {
    show(project.command("npm").args(["pack", "--silent", package.requirement]).current_dir(folder))
        .context("npm is needed: apt-get install npm")?;
    let tools = tools(project)?;
    let mut unpack = tools.command(project, &["-c", CHECK_AND_UNPACK]);
    show(unpack.arg(archive(folder, "tgz")?).arg(package.sha256).arg(unpacked))
}

/// Copies a folder. What is left of an earlier copy is overwritten.
fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

fn tools(project: &Project) -> Result<Venv> {
    Venv::with(project, "fetch", "pip>=23\n")
}

/// The one package that was downloaded to a folder.
fn archive(folder: &Path, extension: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    let mut paths = entries.iter().map(fs::DirEntry::path);
    let archive = paths.find(|path| path.extension().is_some_and(|it| it == extension));
    archive.with_context(|| format!("no package was downloaded to {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packages() -> impl Iterator<Item = &'static Package> {
        let libraries = [&ONNX_RUNTIME, &OPENVINO, &TENSORFLOW, &PYTORCH, &LLAMA_CPP]
            .into_iter()
            .flat_map(|framework| framework.packages);
        libraries.flat_map(|(.., packages)| *packages).chain(EXAMPLES)
    }

    #[test]
    fn every_package_is_pinned_to_a_version_and_a_digest() {
        for package in packages() {
            let versioned =
                package.requirement.split_once("==").or_else(|| package.requirement.rsplit_once('@'));
            let (name, version) = versioned.unwrap();
            assert!(!name.is_empty() && version.starts_with(|first: char| first.is_ascii_digit()), "{name}");
            let is_digest =
                package.sha256.len() == 64 && package.sha256.chars().all(|digit| digit.is_ascii_hexdigit());
            assert!(is_digest, "{}", package.requirement);
        }
    }

    #[test]
    fn no_file_is_written_twice_or_outside_of_the_target() {
        let examples = EXAMPLES.iter().flat_map(|package| package.files).map(|(_, name)| *name).collect();
        let libraries = packages().map(|package| package.files.iter().map(|(_, name)| *name).collect());
        for mut names in libraries.chain([examples]) {
            let names: &mut Vec<&str> = &mut names;
            assert!(names.iter().all(|name| !name.contains("..") && !name.starts_with('/')));
            let count = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), count);
        }
    }

    #[test]
    fn a_platform_without_a_library_gets_an_alternative() {
        for (framework, remedy) in [
            (&ONNX_RUNTIME, "ORT_DYLIB_PATH"),
            (&OPENVINO, "openvino,library="),
            (&TENSORFLOW, "tensorflow,library="),
            (&PYTORCH, "pytorch,library="),
            (&LLAMA_CPP, "llamacpp,library="),
        ] {
            let error = packages_for(framework, "plan9", "mips").err().unwrap().to_string();
            assert!(error.contains("plan9 on mips") && error.contains(remedy), "{error}");
            assert!(packages_for(framework, "linux", "x86_64").is_ok());
        }
    }

    #[test]
    fn present_files_are_not_fetched_again() {
        let folder = tempfile::tempdir().unwrap();
        let package =
            Package { requirement: "nothing==0", sha256: "", platform: "any", files: &[("a", "b/c")] };
        fs::create_dir(folder.path().join("b")).unwrap();
        fs::write(folder.path().join("b/c"), "").unwrap();
        fetch(&Project::find().unwrap(), &package, folder.path()).unwrap();
    }

    #[test]
    fn folder_copy_replaces_an_interrupted_one() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir_all(from.join("a/b")).unwrap();
        for (name, text) in [("x", "1"), ("a/y", "2"), ("a/b/z", "3")] {
            fs::write(from.join(name), text).unwrap();
        }
        fs::create_dir_all(to.join("a")).unwrap();
        fs::write(to.join("a/y"), "cut").unwrap();
        copy_folder(&from, &to).unwrap();
        for (name, text) in [("x", "1"), ("a/y", "2"), ("a/b/z", "3")] {
            assert_eq!(fs::read_to_string(to.join(name)).unwrap(), text, "{name}");
        }
        assert!(copy_folder(&from.join("x"), &to).is_err());
    }
}
