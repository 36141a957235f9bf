//! How the shared library is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for argument in [
        // It has threads and fork handlers: dlclose must not unload it.
        "-Wl,-z,nodelete",
        // All it needs of others is found when it is loaded, not when it is first
        // called, which may be in a signal handler.
        "-Wl,-z,now",
        "-Wl,-z,defs",
        // The loader has it once, by whatever path it is named.
        "-Wl,-soname,libtenure_preload.so",
        // jemalloc's only looks at the environment and at /etc: src/program_jemalloc.rs.
        "-Wl,--wrap=secure_getenv",
        "-Wl,--wrap=readlink",
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}
