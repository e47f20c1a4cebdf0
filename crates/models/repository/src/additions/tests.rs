//! Models of every format, good and bad names, and repositories in every state.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};

use tempfile::TempDir;

use super::*;

/// A folder for sources and repositories.
struct Desk(TempDir);

impl Desk {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes files, each with its own name as contents.
    fn write(&self, names: &[&str]) {
        for name in names {
            let path = self.path(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
    }

    fn find(&self, source: &str) -> Result<LocalModel, String> {
        LocalModel::find(&self.path(source), &|_| Ok(Vec::new()))
    }

    /// Adds a model; returns its place.
    fn add(&self, source: &str, name: Option<&str>) -> Result<String, String> {
        let additions = Additions::new(&self.path("models"))?;
        additions.add(&self.find(source)?, name, Transfer::Copy)?;
        let staged = additions.staged(name)?;
        let place = additions.place(&staged[0])?;
        Ok(place.strip_prefix(self.path("models")).unwrap().to_str().unwrap().to_owned())
    }

    /// The files below a folder, and their contents. Links count as what they lead to.
    fn files(&self, folder: &str) -> BTreeMap<String, String> {
        let (mut found, mut folders) = (BTreeMap::new(), vec![self.path(folder)]);
        while let Some(next) = folders.pop() {
            for entry in fs::read_dir(next).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let name = path.strip_prefix(self.path(folder)).unwrap().to_str().unwrap().to_owned();
                    found.insert(name, fs::read_to_string(path).unwrap());
                }
            }
        }
        found
    }
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, contents)| ((*name).to_owned(), (*contents).to_owned())).collect()
}

#[test]
fn forests_in_text_and_json_are_recognised_by_their_beginning() {
    for (source, contents, expected) in [
        ("churn.txt", "tree\nversion=v4\n", Some("churn/1/lightgbm.txt")),
        ("churn/model.txt", "tree\nversion=v4\n", Some("churn/1/lightgbm.txt")),
        ("churn.json", r#"{"learner":{}}"#, Some("churn/1/xgboost.json")),
        ("churn.bst", "tree\nversion=v4\n", Some("churn/1/lightgbm.txt")),
        ("churn.bst", r#"{"learner":{}}"#, Some("churn/1/xgboost.json")),
        ("churn.bst", "{L\0\0\0\0\0\0\0\x07learner{", Some("churn/1/xgboost.ubj")),
        ("churn/model.bst", "binf\0\0", Some("churn/1/xgboost.model")),
        ("churn.model", "binf\0\0", Some("churn/1/xgboost.model")),
        ("churn.model", "\n\x0e<unk>", None),
        ("churn.model", r#"{"learner":{}}"#, None),
        ("churn.txt", "binf\0\0", None),
        ("churn.bst", "{", None),
        ("churn.bst", "", None),
        ("churn.txt", "trees\n", None),
        ("churn.txt", "", None),
        ("churn.json", r#"{"model_type":"bert"}"#, None),
    ] {
        let desk = Desk::new();
        let path = desk.path(source);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
        match (desk.find(source), expected) {
            (Ok(model), Some(expected)) => {
                let place = format!("{}/{}", model.name, model.files[0].1);
                assert_eq!(place, expected, "{source}");
            }
            (Err(reason), None) => assert!(
                reason.contains("LightGBM (.txt, .bst)") || reason.contains("an XGBoost model"),
                "{reason}"
            ),
            (found, _) => panic!("{source}: {found:?}"),
        }
    }
}

#[test]
fn every_format_gets_the_layout_of_a_repository() {
    for (source, files, expected) in [
        ("net.onnx", &["net.onnx"][..], &[("net/1/model.onnx", "net.onnx")][..]),
        ("Net.v2.ONNX", &["Net.v2.ONNX"], &[("Net.v2/1/model.onnx", "Net.v2.ONNX")]),
        ("a b/größe.pt", &["a b/größe.pt"], &[("größe/1/model.pt", "a b/größe.pt")]),
        ("net.torchscript", &["net.torchscript"], &[("net/1/model.pt", "net.torchscript")]),
        ("net.pt2", &["net.pt2"], &[("net/1/model.pt2", "net.pt2")]),
        ("net.plan", &["net.plan"], &[("net/1/model.plan", "net.plan")]),
        ("net.engine", &["net.engine"], &[("net/1/model.plan", "net.engine")]),
        ("frozen.pb", &["frozen.pb"], &[("frozen/1/model.graphdef", "frozen.pb")]),
        (
            "net.xml",
            &["net.xml", "net.bin"],
            &[("net/1/model.bin", "net.bin"), ("net/1/model.xml", "net.xml")],
        ),
        (
            "net.netdef",
            &["net.netdef", "init_net.netdef"],
            &[("net/1/init_model.netdef", "init_net.netdef"), ("net/1/model.netdef", "net.netdef")],
        ),
        ("tiny.Q4_1.gguf", &["tiny.Q4_1.gguf"], &[("tiny.Q4_1/1/model.gguf", "tiny.Q4_1.gguf")]),
        ("chat/model.gguf", &["chat/model.gguf"], &[("chat/1/model.gguf", "chat/model.gguf")]),
        (
            "big-00002-of-00002.gguf",
            &["big-00001-of-00002.gguf", "big-00002-of-00002.gguf", "big-00001-of-00003.gguf"],
            &[
                ("big/1/model-00002-of-00002.gguf", "big-00002-of-00002.gguf"),
                ("big/1/model.gguf", "big-00001-of-00002.gguf"),
            ],
        ),
        (
            "big",
            &["big/q-00001-of-00002.gguf", "big/q-00002-of-00002.gguf", "big/mmproj-f16.gguf"],
            &[
                ("q/1/model-00002-of-00002.gguf", "big/q-00002-of-00002.gguf"),
                ("q/1/model.gguf", "big/q-00001-of-00002.gguf"),
            ],
        ),
        ("churn.ubj", &["churn.ubj"], &[("churn/1/xgboost.ubj", "churn.ubj")]),
        (
            "churn/checkpoint.tl",
            &["churn/checkpoint.tl"],
            &[("churn/1/checkpoint.tl", "churn/checkpoint.tl")],
        ),
        ("rank.py", &["rank.py", "other.py"], &[("rank/1/model.py", "rank.py")]),
        // The folder's name replaces a generic name.
        ("resnet/model.onnx", &["resnet/model.onnx"], &[("resnet/1/model.onnx", "resnet/model.onnx")]),
        ("resnet/1/model.onnx", &["resnet/1/model.onnx"], &[("resnet/1/model.onnx", "resnet/1/model.onnx")]),
        ("bert/onnx/model.onnx", &["bert/onnx/model.onnx"], &[("bert/1/model.onnx", "bert/onnx/model.onnx")]),
        ("bert", &["bert/model.onnx", "bert/config.json"], &[("bert/1/model.onnx", "bert/model.onnx")]),
        (
            "mnist",
            &["mnist/saved_model.pb", "mnist/variables/v", "mnist/.git/x"],
            &[
                ("mnist/1/model.savedmodel/saved_model.pb", "mnist/saved_model.pb"),
                ("mnist/1/model.savedmodel/variables/v", "mnist/variables/v"),
            ],
        ),
        (
            "mnist/saved_model.pb",
            &["mnist/saved_model.pb"],
            &[("mnist/1/model.savedmodel/saved_model.pb", "mnist/saved_model.pb")],
        ),
        (
            "digits.savedmodel",
            &["digits.savedmodel/saved_model.pb"],
            &[("digits/1/model.savedmodel/saved_model.pb", "digits.savedmodel/saved_model.pb")],
        ),
        // The layout of TensorFlow Serving: the last version.
        (
            "half_plus_two",
            &["half_plus_two/9/saved_model.pb", "half_plus_two/10/saved_model.pb"],
            &[("half_plus_two/1/model.savedmodel/saved_model.pb", "half_plus_two/10/saved_model.pb")],
        ),
        (
            "flowers",
            &["flowers/0001/saved_model.pb", "flowers/0001/variables/v"],
            &[
                ("flowers/1/model.savedmodel/saved_model.pb", "flowers/0001/saved_model.pb"),
                ("flowers/1/model.savedmodel/variables/v", "flowers/0001/variables/v"),
            ],
        ),
        // The configuration and the model's file share a folder, as in buckets without versions.
        (
            "net",
            &["net/config.pbtxt", "net/labels.txt", "net/net.pt", "net/.cache/x"],
            &[
                ("net/1/model.pt", "net/net.pt"),
                ("net/config.pbtxt", "net/config.pbtxt"),
                ("net/labels.txt", "net/labels.txt"),
            ],
        ),
        (
            "rank",
            &["rank/config.pbtxt", "rank/model.py", "rank/words/en.txt", "rank/__pycache__/x.pyc"],
            &[
                ("rank/1/model.py", "rank/model.py"),
                ("rank/1/words/en.txt", "rank/words/en.txt"),
                ("rank/config.pbtxt", "rank/config.pbtxt"),
            ],
        ),
        (
            "rank",
            &["rank/model.py", "rank/words/en.txt", "rank/__pycache__/x.pyc"],
            &[("rank/1/model.py", "rank/model.py"), ("rank/1/words/en.txt", "rank/words/en.txt")],
        ),
        (
            "chat",
            &[
                "chat/config.json",
                "chat/model-00001-of-00001.safetensors",
                "chat/model.safetensors.index.json",
                "chat/tokenizer.json",
                "chat/pytorch_model.bin",
                "chat/.git/x",
            ],
            &[
                ("chat/1/config.json", "chat/config.json"),
                ("chat/1/model-00001-of-00001.safetensors", "chat/model-00001-of-00001.safetensors"),
                ("chat/1/model.safetensors.index.json", "chat/model.safetensors.index.json"),
                ("chat/1/tokenizer.json", "chat/tokenizer.json"),
            ],
        ),
        (
            "whole",
            &["whole/config.pbtxt", "whole/labels.txt", "whole/3/model.onnx", "whole/.hidden"],
            &[
                ("whole/3/model.onnx", "whole/3/model.onnx"),
                ("whole/config.pbtxt", "whole/config.pbtxt"),
                ("whole/labels.txt", "whole/labels.txt"),
            ],
        ),
    ] {
        let desk = Desk::new();
        desk.write(files);
        desk.add(source, None).unwrap();
        assert_eq!(desk.files("models"), map(expected), "{source}");
        // Nothing else is left, not even a hidden folder.
        assert_eq!(names(&desk.path("models")).unwrap().len(), 1, "{source}");
    }
}

#[test]
fn files_with_weights_of_an_onnx_file_come_with_it() {
    let desk = Desk::new();
    desk.write(&["net.onnx", "net.onnx.data", "parts/w 1", "notes.txt"]);
    let data = |_: &Path| Ok(vec!["net.onnx.data".to_owned(), "parts/w 1".to_owned()]);
    let model = LocalModel::find(&desk.path("net.onnx"), &data).unwrap();
    let additions = Additions::new(&desk.path("models")).unwrap();
    additions.add(&model, Some("other"), Transfer::Copy).unwrap();
    additions.place(&additions.staged(Some("other")).unwrap()[0]).unwrap();
    drop(additions);
    let expected = [
        ("other/1/model.onnx", "net.onnx"),
        ("other/1/net.onnx.data", "net.onnx.data"),
        ("other/1/parts/w 1", "parts/w 1"),
    ];
    assert_eq!(desk.files("models"), map(&expected));
    let refusal = LocalModel::find(&desk.path("net.onnx"), &|_| Err("is not ONNX".to_owned()));
    assert_eq!(refusal, Err("is not ONNX".to_owned()));
}

#[test]
fn models_of_texts_bring_their_tokenizer_and_settings() {
    let desk = Desk::new();
    let at_the_root = ["config.json", "modules.json", "tokenizer.json", "1_Pooling/config.json", "README.md"];
    for (folder, graph, source) in [
        ("minilm", "onnx/model.onnx", "minilm"),
        ("e5", "onnx/model.onnx", "e5/onnx/model.onnx"),
        ("bge", "model.onnx", "bge"),
        ("gte", "openvino/openvino_model.xml", "gte"),
    ] {
        let mut names: Vec<_> = at_the_root.iter().map(|name| format!("{folder}/{name}")).collect();
        names.push(format!("{folder}/{graph}"));
        names.push(format!("{folder}/openvino/openvino_model.bin"));
        names.push(format!("{folder}/onnx/config.json"));
        desk.write(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let found = desk.find(source).unwrap();
        assert_eq!(found.name, folder);
        let mut places: Vec<_> = found.files.iter().map(|(_, place)| place.as_str()).collect();
        places.retain(|place| place.ends_with(".json"));
        places.sort_unstable();
        assert_eq!(
            places,
            ["1/1_Pooling/config.json", "1/config.json", "1/modules.json", "1/tokenizer.json"],
            "{source}"
        );
        let (config, _) = found.files.iter().find(|(_, place)| place == "1/config.json").unwrap();
        assert_eq!(config.parent().unwrap().ends_with("onnx"), graph.starts_with("onnx"), "{source}");
    }
    desk.write(&["plain/model.onnx", "plain/config.json", "tokenizer.json"]);
    assert_eq!(desk.find("plain").unwrap().files.len(), 1);
}

#[test]
fn what_is_no_model_is_refused_with_what_would_be_one() {
    let desk = Desk::new();
    desk.write(&[
        "notes.txt",
        "net.xml",
        "weights.safetensors",
        "net.h5",
        "part-00002-of-00003.gguf",
        "part-00003-of-00003.gguf",
        "projector/mmproj-f16.gguf",
        "quantized/a.Q4_0.gguf",
        "quantized/a.Q8_0.gguf",
        "two/a.onnx",
        "two/b.pt",
        "repository/m/1/model.onnx",
    ]);
    fs::create_dir(desk.path("empty")).unwrap();
    for (source, expected) in [
        ("missing.onnx", "cannot read '"),
        ("notes.txt", "is not a model that a backend reads; known are .onnx"),
        ("net.xml", "needs its weights beside it"),
        ("weights.safetensors", "optimum-cli export onnx"),
        ("net.h5", "is not a model that a backend reads: it has 'net.h5'"),
        ("part-00002-of-00003.gguf", "is one of 3 parts; '"),
        ("projector", "is not a model that a backend reads"),
        ("quantized", "has several models; name one of them"),
        ("two", "has several models; name one of them"),
        ("empty", "is not a model that a backend reads; known are"),
        ("repository", "is not a model that a backend reads"),
    ] {
        let error = desk.find(source).unwrap_err();
        assert!(error.contains(expected), "{source}: {error}");
    }
}

#[test]
fn names_are_those_of_visible_folders() {
    let desk = Desk::new();
    desk.write(&["net.onnx"]);
    for name in ["", ".", "..", ".hidden", "a/b", "/", "a\nb"] {
        let error = desk.add("net.onnx", Some(name)).unwrap_err();
        assert!(error.contains("is not a name for a model"), "{name:?}: {error}");
        // The repository was made for the model alone.
        assert!(!desk.path("models").exists(), "{name:?}");
    }
    for name in ["a", "two words", "größe", "a.b", "-x", "100%"] {
        assert_eq!(desk.add("net.onnx", Some(name)).unwrap(), name);
    }
}

#[test]
fn model_that_exists_gets_the_next_version_and_keeps_its_configuration() {
    let desk = Desk::new();
    desk.write(&["net.onnx", "models/net/config.pbtxt", "models/net/labels.txt", "models/net/2/model.onnx"]);
    desk.write(&["models/net/10/model.onnx", "models/net/010/model.onnx", "models/net/.hidden/x"]);
    let additions = Additions::new(&desk.path("models")).unwrap();
    additions.add(&desk.find("net.onnx").unwrap(), None, Transfer::Copy).unwrap();
    let staged = additions.staged(None).unwrap();
    assert_eq!((staged[0].version, staged[0].exists), (11, true));
    let there = desk.files(staged[0].folder.strip_prefix(desk.0.path()).unwrap().to_str().unwrap());
    let expected = ["010/model.onnx", "11/model.onnx", "config.pbtxt", "labels.txt"];
    assert_eq!(there.keys().collect::<Vec<_>>(), expected);
    let before = desk.files("models/net");
    additions.place(&staged[0]).unwrap();
    let mut after = desk.files("models/net");
    assert_eq!(after.remove("11/model.onnx").unwrap(), "net.onnx");
    assert_eq!(after, before);
    drop(additions);
    assert_eq!(desk.add("net.onnx", None).unwrap(), "net/12");
    // A source with versions of its own.
    desk.write(&["net/1/model.onnx", "net/5/model.onnx", "net/config.pbtxt"]);
    assert!(desk.add("net", None).unwrap_err().contains("the source has 2 versions: --name=NAME"));
    fs::remove_dir_all(desk.path("net/5")).unwrap();
    assert_eq!(desk.add("net", None).unwrap(), "net/13");
    assert_eq!(fs::read_to_string(desk.path("models/net/config.pbtxt")).unwrap(), "models/net/config.pbtxt");
}

#[test]
fn links_are_followed_unless_they_lead_in_circles() {
    let desk = Desk::new();
    desk.write(&["blobs/abc", "elsewhere/net/1/model.onnx", "circle/saved_model.pb"]);
    symlink(desk.path("blobs/abc"), desk.path("net.onnx")).unwrap();
    fs::create_dir(desk.path("models")).unwrap();
    symlink(desk.path("elsewhere/net"), desk.path("models/net")).unwrap();
    assert_eq!(desk.add("net.onnx", None).unwrap(), "net/2");
    assert!(!desk.path("elsewhere/net/2/model.onnx").is_symlink());
    assert_eq!(desk.files("elsewhere")["net/2/model.onnx"], "blobs/abc");
    symlink(desk.path("circle"), desk.path("circle/again")).unwrap();
    let error = desk.add("circle", None).unwrap_err();
    assert!(error.contains("is it a link to a folder above?"), "{error}");
    symlink("/dev/zero", desk.path("zero.onnx")).unwrap();
    symlink(desk.path("nothing"), desk.path("none.onnx")).unwrap();
    assert!(desk.add("zero.onnx", None).unwrap_err().contains("a character device"));
    assert!(desk.add("none.onnx", None).unwrap_err().contains("cannot read"));
    assert_eq!(names(&desk.path("models")).unwrap(), ["net"]);
}

#[test]
fn links_to_files_that_stay_take_no_room() {
    let desk = Desk::new();
    desk.write(&[
        "blobs/abc",
        "net/model.onnx",
        "mnist/saved_model.pb",
        "mnist/variables/v",
        "mnist/.hidden",
    ]);
    symlink(desk.path("blobs/abc"), desk.path("linked.onnx")).unwrap();
    symlink("/dev/zero", desk.path("zero.onnx")).unwrap();
    let refer = |source: &str| {
        let additions = Additions::new(&desk.path("models"))?;
        additions.add(&desk.find(source)?, None, Transfer::Refer)?;
        let staged = additions.staged(None)?;
        additions.write_config(&staged[0], "config")?;
        additions.place(&staged[0])
    };
    for source in ["net", "mnist", "linked.onnx"] {
        refer(source).unwrap();
    }
    assert!(refer("zero.onnx").unwrap_err().contains("a character device"));
    let file = |path: &str| fs::read_to_string(desk.path("models").join(path)).unwrap();
    for (path, target) in [
        ("net/1/model.onnx", "net/model.onnx"),
        ("mnist/1/model.savedmodel/variables/v", "mnist/variables/v"),
        ("linked/1/model.onnx", "linked.onnx"),
    ] {
        assert_eq!(fs::read_link(desk.path("models").join(path)).unwrap(), desk.path(target));
    }
    assert_eq!(file("linked/1/model.onnx"), "blobs/abc");
    assert_eq!(file("net/config.pbtxt"), "config");
    assert_eq!(names(&desk.path("models/mnist/1/model.savedmodel")).unwrap().len(), 2);
}

#[test]
fn links_do_not_change_the_configuration_that_they_lead_to() {
    let desk = Desk::new();
    desk.write(&["net/config.pbtxt", "net/1/model.onnx"]);
    let additions = Additions::new(&desk.path("models")).unwrap();
    additions.add(&desk.find("net").unwrap(), None, Transfer::Refer).unwrap();
    let staged = additions.staged(None).unwrap();
    additions.write_config(&staged[0], "another").unwrap();
    additions.place(&staged[0]).unwrap();
    assert_eq!(fs::read_to_string(desk.path("models/net/config.pbtxt")).unwrap(), "another");
    assert_eq!(fs::read_to_string(desk.path("net/config.pbtxt")).unwrap(), "net/config.pbtxt");
}

/// Adds a model by moving it; returns its place.
fn move_in(desk: &Desk, source: &str) -> Result<String, String> {
    let additions = Additions::new(&desk.path("models"))?;
    let sources = additions.add(&desk.find(source)?, None, Transfer::Link)?;
    let staged = additions.staged(None)?;
    let place = additions.place(&staged[0])?;
    sources.remove(&desk.path(source), &staged[0])?;
    Ok(place.strip_prefix(desk.path("models")).unwrap().to_str().unwrap().to_owned())
}

#[test]
fn moved_models_leave_what_was_not_added() {
    for (source, there, expected, left) in [
        ("net.onnx", &["net.onnx", "notes.txt"][..], &["net/1/model.onnx"][..], &["notes.txt"][..]),
        ("net.xml", &["net.xml", "net.bin"], &["net/1/model.bin", "net/1/model.xml"], &[]),
        (
            "net",
            &["net/saved_model.pb", "net/variables/v", "net/.git/x", "other/y"],
            &["net/1/model.savedmodel/saved_model.pb", "net/1/model.savedmodel/variables/v"],
            &["net/.git/x", "other/y"],
        ),
        (
            "net",
            &["net/config.pbtxt", "net/1/model.onnx", "net/1/deep/er"],
            &["net/1/deep/er", "net/1/model.onnx", "net/config.pbtxt"],
            &[],
        ),
    ] {
        let desk = Desk::new();
        desk.write(there);
        assert_eq!(move_in(&desk, source).unwrap(), "net");
        assert_eq!(desk.files("models").keys().collect::<Vec<_>>(), expected, "{there:?}");
        let all = desk.files("");
        let found: Vec<_> = all.keys().filter(|path| !path.starts_with("models/")).collect();
        assert_eq!(found, left, "{there:?}");
        // So are folders without files.
        assert_eq!(desk.path(source).exists(), left.iter().any(|path| path.starts_with(source)), "{there:?}");
    }
}

#[test]
fn moved_version_of_a_model_that_exists_leaves_its_configuration() {
    let desk = Desk::new();
    desk.write(&["models/net/config.pbtxt", "models/net/1/model.onnx"]);
    desk.write(&["net/config.pbtxt", "net/labels.txt", "net/1/model.onnx"]);
    assert_eq!(move_in(&desk, "net").unwrap(), "net/2");
    assert_eq!(
        desk.files("net"),
        map(&[("config.pbtxt", "net/config.pbtxt"), ("labels.txt", "net/labels.txt")])
    );
}

#[test]
fn moved_links_leave_the_files_of_others() {
    let desk = Desk::new();
    desk.write(&["blobs/abc", "blobs/variables/v", "net/saved_model.pb"]);
    symlink(desk.path("blobs/abc"), desk.path("linked.onnx")).unwrap();
    symlink(desk.path("blobs/variables"), desk.path("net/variables")).unwrap();
    for source in ["linked.onnx", "net"] {
        move_in(&desk, source).unwrap();
        assert!(!desk.path(source).exists());
    }
    assert_eq!(desk.files("blobs"), map(&[("abc", "blobs/abc"), ("variables/v", "blobs/variables/v")]));
    let copied = desk.path("models/linked/1/model.onnx");
    fs::write(&copied, "changed").unwrap();
    assert_eq!(desk.files("blobs")["abc"], "blobs/abc");
}

#[test]
fn model_that_is_not_moved_in_the_end_stays_as_it_was() {
    let desk = Desk::new();
    desk.write(&["net/config.pbtxt", "net/1/model.onnx"]);
    let before = desk.files("net");
    let additions = Additions::new(&desk.path("models")).unwrap();
    let sources = additions.add(&desk.find("net").unwrap(), None, Transfer::Link).unwrap();
    let staged = additions.staged(None).unwrap();
    // A configuration that replaces the source's.
    additions.write_config(&staged[0], "backend: 'identity'").unwrap();
    drop((additions, sources));
    assert_eq!(desk.files("net"), before);
    assert!(!desk.path("models").exists());
}

#[test]
fn model_may_be_on_another_file_system() {
    let desk = Desk::new();
    desk.write(&["net.onnx", "models/other/1/model.onnx"]);
    // In memory, on nearly all machines.
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::create_dir_all(elsewhere.path().join("net/1")).unwrap();
    symlink(elsewhere.path().join("net"), desk.path("models/net")).unwrap();
    for version in 2..5 {
        assert_eq!(desk.add("net.onnx", None).unwrap(), format!("net/{version}"));
        let file = elsewhere.path().join(format!("net/{version}/model.onnx"));
        assert_eq!(fs::read_to_string(file).unwrap(), "net.onnx");
    }
    assert_eq!(names(&elsewhere.path().join("net")).unwrap().len(), 4);
    // A failure leaves nothing there either.
    let additions = Additions::new(&desk.path("models")).unwrap();
    additions.add(&desk.find("net.onnx").unwrap(), None, Transfer::Copy).unwrap();
    let staged = additions.staged(None).unwrap().remove(0);
    fs::create_dir(elsewhere.path().join("net/5")).unwrap();
    assert!(additions.place(&staged).unwrap_err().contains("File exists"));
    assert_eq!(names(&elsewhere.path().join("net")).unwrap().len(), 5);
}

#[test]
fn nobody_is_overwritten() {
    let desk = Desk::new();
    desk.write(&["net.onnx"]);
    let stage = || {
        let additions = Additions::new(&desk.path("models")).unwrap();
        additions.add(&desk.find("net.onnx").unwrap(), None, Transfer::Copy).unwrap();
        let staged = additions.staged(None).unwrap().remove(0);
        (additions, staged)
    };
    let (first, second) = (stage(), stage());
    assert!(first.0.place(&first.1).is_ok());
    let error = second.0.place(&second.1).unwrap_err();
    assert!(error.contains("File exists"), "{error}");
    drop((first, second));
    // Nor is an empty folder.
    fs::create_dir(desk.path("models/other")).unwrap();
    assert_eq!(desk.add("net.onnx", Some("other")).unwrap(), "other/1");
    assert_eq!(names(&desk.path("models")).unwrap().len(), 2);
}

#[test]
fn left_over_folders_are_removed_and_those_in_use_stay() {
    let desk = Desk::new();
    desk.write(&[
        "models/.nereid-add-dead/lock",
        "models/.nereid-add-dead/models/m/1/model.onnx",
        "net.onnx",
    ]);
    fs::set_permissions(desk.path("models"), fs::Permissions::from_mode(0o755)).unwrap();
    let living = Additions::new(&desk.path("models")).unwrap();
    living.add(&desk.find("net.onnx").unwrap(), Some("living"), Transfer::Copy).unwrap();
    assert!(!desk.path("models/.nereid-add-dead").exists());
    assert_eq!(desk.add("net.onnx", None).unwrap(), "net");
    assert_eq!(living.staged(None).unwrap()[0].name, "living");
}

#[test]
fn texts_name_the_repository_and_not_the_staged_one() {
    let desk = Desk::new();
    let additions = Additions::new(&desk.path("models")).unwrap();
    let staged = additions.make("m").unwrap();
    let shown = additions.named(&format!("{}/config.pbtxt:1:2", staged.folder.display()));
    assert_eq!(shown, format!("{}/m/config.pbtxt:1:2", desk.path("models").display()));
}
