//! How the shared library is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for argument in [
        // It has threads and fork handlers, and SQLite its functions: dlclose must not
        // unload it.
        "-Wl,-z,nodelete",
        "-Wl,-z,now",
        "-Wl,-z,defs",
        // The loader has it once, by whatever path it is named.
        "-Wl,-soname,libtenure_sqlite.so",
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}
