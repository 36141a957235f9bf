use super::*;
use std::fs;

#[test]
fn library_is_found_where_installed_and_where_built() {
    for place in places() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("bin");
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir_all(folder.join(&place)).unwrap();
        let command = folder.join("tenure");
        let error = find_beside(&command).unwrap_err().to_string();
        assert!(error.contains(NAME), "{error}");
        let library = folder.join(&place).join(NAME);
        fs::write(&library, "").unwrap();
        let found = find_beside(&command).unwrap();
        assert_eq!(found, library.canonicalize().unwrap());
    }
}
