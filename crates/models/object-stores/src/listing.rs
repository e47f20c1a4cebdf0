//! The contents of a bucket's folder, from one listing.
//!
//! Buckets have no folders: a folder exists if an object's key begins with its path, or if it was created as an empty
//! object.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use nereid_repository::{Entry, Object, ObjectKind};
use object_store::ObjectMeta;

/// A listing, of the whole repository or of a folder in it.
#[derive(Debug)]
pub(crate) struct Listing {
    /// When the listing began.
    pub as_of: Instant,
    /// The objects, by paths relative to the repository.
    nodes: Arc<BTreeMap<String, Node>>,
}

#[derive(Clone, Debug)]
enum Node {
    Folder,
    File(ObjectMeta),
}

impl Listing {
    /// A listing of objects whose keys begin with this prefix, which is empty or ends with a slash.
    pub(crate) fn new(as_of: Instant, repository: &str, objects: Vec<ObjectMeta>) -> Self {
        let mut nodes = BTreeMap::new();
        let mut files = Vec::new();
        for object in objects {
            let key = object.location.as_ref();
            if let Some(path) = key.strip_prefix(repository).filter(|path| !path.is_empty()) {
                files.push((path.to_owned(), object));
            }
        }
        for (path, _) in &files {
            for (end, _) in path.match_indices('/') {
                nodes.insert(path[..end].to_owned(), Node::Folder);
            }
        }
        for (path, object) in files {
            if is_marker(&path, &object) {
                nodes.insert(path, Node::Folder);
            } else {
                // On a disk, nothing can be both a file and a folder.
                nodes.entry(path).or_insert(Node::File(object));
            }
        }
        Self { as_of, nodes: Arc::new(nodes) }
    }

    /// A listing of one model with these files, given by their paths in the model's folder and in the bucket.
    pub(crate) fn of_model(
        as_of: Instant,
        name: &str,
        files: &[(String, String)],
        objects: Vec<ObjectMeta>,
    ) -> Self {
        let objects: BTreeMap<_, _> =
            objects.into_iter().map(|object| (object.location.to_string(), object)).collect();
        let mut nodes = BTreeMap::from([(name.to_owned(), Node::Folder)]);
        for (path, file) in files {
            let Some(object) = objects.get(file) else { continue };
            for (end, _) in path.match_indices('/') {
                nodes.insert(format!("{name}/{}", &path[..end]), Node::Folder);
            }
            nodes.insert(format!("{name}/{path}"), Node::File(object.clone()));
        }
        Self { as_of, nodes: Arc::new(nodes) }
    }

    /// Moves everything into a folder of this name if the files belong to a single model.
    pub(crate) fn in_model(self, name: &str) -> Self {
        let Self { as_of, nodes } = self;
        let names = nodes.keys().filter(|path| !path.contains('/')).map(String::as_str);
        if !is_model(names) {
            return Self { as_of, nodes };
        }
        let nodes = Arc::unwrap_or_clone(nodes).into_iter();
        let mut nodes: BTreeMap<_, _> = nodes.map(|(path, node)| (format!("{name}/{path}"), node)).collect();
        nodes.insert(name.to_owned(), Node::Folder);
        Self { as_of, nodes: Arc::new(nodes) }
    }

    /// The same listing as of a later time.
    pub(crate) fn known_since(&self, as_of: Instant) -> Self {
        Self { as_of, nodes: Arc::clone(&self.nodes) }
    }

    /// Whether the listing has no entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The object for a file's path.
    pub(crate) fn object(&self, path: &str) -> Option<&ObjectMeta> {
        match self.nodes.get(path)? {
            Node::File(object) => Some(object),
            Node::Folder => None,
        }
    }

    /// The entries of a folder; `None` if the folder does not exist.
    pub(crate) fn list(&self, folder: &str) -> Option<Vec<Entry>> {
        let direct = self.below(folder)?.filter(|(path, _)| !path.contains('/'));
        Some(
            direct
                .map(|(path, node)| Entry { name: path.to_owned(), is_folder: matches!(node, Node::Folder) })
                .collect(),
        )
    }

    /// All entries below a folder except editors' temporary files; `None` if the folder does not exist.
    pub(crate) fn stat(&self, folder: &str) -> Option<Vec<Object>> {
        let is_left_behind =
            |path: &str| path.split('/').any(|part| part.starts_with('.') || part.ends_with('~'));
        let shown = self.below(folder)?.filter(|(path, _)| !is_left_behind(path));
        Some(
            shown
                .map(|(path, node)| {
                    let kind = match node {
                        Node::Folder => ObjectKind::Folder,
                        Node::File(object) => ObjectKind::File { size: object.size, stamp: stamp(object) },
                    };
                    Object { path: path.to_owned(), kind }
                })
                .collect(),
        )
    }

    /// The folders, and the files with their objects, in a folder.
    pub(crate) fn contents(&self, folder: &str) -> Option<Contents> {
        let mut contents = Contents::default();
        for (path, node) in self.below(folder)? {
            match node {
                Node::Folder => contents.folders.push(path.to_owned()),
                Node::File(object) => contents.files.push((path.to_owned(), object.clone())),
            }
        }
        Some(contents)
    }

    /// Everything below a folder, by relative path.
    fn below<'a>(&'a self, folder: &str) -> Option<impl Iterator<Item = (&'a str, &'a Node)> + use<'a>> {
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        if !folder.is_empty() && !matches!(self.nodes.get(folder), Some(Node::Folder)) {
            return None;
        }
        let from = self.nodes.range(prefix.clone()..);
        Some(from.map_while(move |(path, node)| Some((path.strip_prefix(&prefix)?, node))))
    }
}

/// An entry of a folder.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub folders: Vec<String>,
    pub files: Vec<(String, ObjectMeta)>,
}

/// Whether these are the entries of a single model's folder.
pub(crate) fn is_model<'a>(mut names: impl Iterator<Item = &'a str>) -> bool {
    names.any(|name| name == "config.pbtxt" || nereid_repository::version_number(name).is_some())
}

/// Changes whenever the contents do.
pub(crate) fn stamp(object: &ObjectMeta) -> String {
    let version = object.e_tag.as_deref().or(object.version.as_deref());
    version.map_or_else(|| object.last_modified.to_rfc3339(), str::to_owned)
}

/// Whether an object only marks a folder. Tools name it `folder/`, which in listings looks like an empty file; but no
/// file of a model has a version as its name.
fn is_marker(path: &str, object: &ObjectMeta) -> bool {
    let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
    object.size == 0 && path.contains('/') && nereid_repository::version_number(name).is_some()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn object(key: &str, size: u64) -> ObjectMeta {
        let location = object_store::path::Path::parse(key).unwrap();
        let last_modified = Default::default();
        ObjectMeta { location, last_modified, size, e_tag: Some("e".into()), version: None }
    }

    fn listing(repository: &str, keys: &[(&str, u64)]) -> Listing {
        let objects = keys.iter().map(|(key, size)| object(key, *size)).collect();
        Listing::new(Instant::now(), repository, objects)
    }

    fn names(listing: &Listing, folder: &str) -> Option<Vec<String>> {
        let entries = listing.list(folder)?;
        let name = |entry: Entry| format!("{}{}", entry.name, if entry.is_folder { "/" } else { "" });
        Some(entries.into_iter().map(name).collect())
    }

    #[test]
    fn folders_are_what_keys_continue() {
        let listing = listing(
            "models/",
            &[
                ("models/", 0),
                ("models/m/1/a", 1),
                ("models/m/config.pbtxt", 0),
                ("models/README", 0),
                ("models2/x", 1),
            ],
        );
        assert_eq!(names(&listing, "").unwrap(), ["README", "m/"]);
        assert_eq!(names(&listing, "m").unwrap(), ["1/", "config.pbtxt"]);
        for missing in ["x", "m/2", "README", "m/1/a", "models"] {
            assert_eq!(names(&listing, missing), None, "{missing}");
        }
    }

    #[test]
    fn the_files_of_a_model_are_in_a_folder_of_its_name() {
        for (keys, expected) in [
            (&["config.pbtxt", "1/model.onnx"][..], &["m/"][..]),
            (&["1/model.onnx", "README.md"], &["m/"]),
            (&["x/config.pbtxt", "x/1/model.onnx", "README.md"], &["README.md", "x/"]),
            (&["v1/model.onnx"], &["v1/"]),
            (&[], &[]),
        ] {
            let keys: Vec<_> = keys.iter().map(|key| (*key, 1)).collect();
            let listing = listing("", &keys).in_model("m");
            assert_eq!(names(&listing, "").unwrap(), expected);
        }
        let listing = listing("a/", &[("a/1/x", 1), ("a/config.pbtxt", 1)]).in_model("m");
        assert_eq!(names(&listing, "m").unwrap(), ["1/", "config.pbtxt"]);
        assert_eq!(listing.contents("m/1").unwrap().files[0].0, "x");
    }

    #[test]
    fn empty_objects_mark_folders() {
        let of = |keys: &[(&str, u64)]| {
            let paths = listing("", keys).stat("m").map(|objects| {
                let is_folder = |object: &Object| object.kind == ObjectKind::Folder;
                objects.iter().map(|object| (object.path.clone(), is_folder(object))).collect::<Vec<_>>()
            });
            paths.unwrap_or_default()
        };
        // An ensemble's version, which has no files.
        assert_eq!(of(&[("m/1/", 0), ("m/config.pbtxt", 1)])[0], ("1".into(), true));
        assert_eq!(of(&[("m/1", 5)])[0], ("1".into(), false));
        assert_eq!(of(&[("m/empty", 0)])[0], ("empty".into(), false));
        assert_eq!(of(&[("m/a/", 0), ("m/a/b", 1)]), [("a".into(), true), ("a/b".into(), false)]);
        // Both a file and a folder.
        assert_eq!(of(&[("m/a", 3), ("m/a/b", 1)])[0], ("a".into(), true));
    }

    proptest! {
        #[test]
        fn every_object_is_found_again(keys in vec("[a-c]{1,2}(/[a-c .~-]{1,2}x){0,3}", 0..20)) {
            let objects: Vec<_> = keys.iter().map(|key| (key.as_str(), 1)).collect();
            let listing = listing("", &objects);
            let contents = listing.contents("").unwrap();
            for key in &keys {
                let is_file = contents.files.iter().any(|(path, _)| path == key);
                let is_folder = contents.folders.contains(key);
                prop_assert!(is_file != is_folder, "{}", key);
                for (end, _) in key.match_indices('/') {
                    let (folder, name) = (&key[..end], key[end + 1..].split('/').next().unwrap());
                    let entries = listing.list(folder).unwrap();
                    prop_assert!(entries.iter().any(|entry| entry.name == name));
                }
            }
            for (path, _) in &contents.files {
                prop_assert!(keys.contains(path));
            }
        }
    }
}
