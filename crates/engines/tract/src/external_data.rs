//! Reads the files next to an ONNX file that hold its weights. The engine checks that their names stay in the folder.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use nereid_model_files as model_files;
use tract_onnx::data_resolver::ModelDataResolver;
use tract_onnx::prelude::TractResult;
use tract_onnx::tract_core::internal::{anyhow, ensure};

/// Reads regular files. It does not map them: a file that changes under a mapping takes the process down.
pub(crate) struct RegularFiles;

impl ModelDataResolver for RegularFiles {
    fn read_bytes_from_path(
        &self,
        contents: &mut Vec<u8>,
        path: &Path,
        offset: usize,
        length: Option<usize>,
    ) -> TractResult<()> {
        let mut file =
            model_files::open(path).map_err(|error| anyhow!("cannot read {}: {error}", path.display()))?;
        let size = usize::try_from(file.metadata()?.len())?;
        let past =
            |what: &str| anyhow!("{what} is past the end of {}, which has {size} bytes", path.display());
        let rest = size.checked_sub(offset).ok_or_else(|| past(&format!("offset {offset}")))?;
        let length = length.unwrap_or(rest);
        ensure!(length <= rest, past(&format!("the end of {length} bytes from offset {offset}")));
        file.seek(SeekFrom::Start(offset as u64))?;
        contents.try_reserve_exact(length)?;
        file.take(length as u64).read_to_end(contents)?;
        Ok(())
    }
}
