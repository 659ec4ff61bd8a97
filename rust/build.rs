//! Compiles each cuda/families/<family>.cu into a fatbin for each target, which the library embeds, compressed: the only place that
//! knows nvcc.
//!
//! `PEACCEL_CUDA`: `auto` (the default) does without CUDA where there is no nvcc, `require` fails there, `off` does without.
//! nvcc is sought in `PEACCEL_NVCC`, among the installed wheels of the Python that builds, in `CUDA_HOME` or `CUDA_PATH`, in
//! `PATH`. It must be 13.0: kernels of a later toolkit do not load with the drivers that 13.0 asks for.
//! `PEACCEL_CUDA_TARGETS` lists compute capabilities, by default all that wheels are made for.

use lzma_rust2::{LzmaOptions, LzmaWriter};
use std::env;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const TOOLKIT: &str = "13.0";
/// Machine code for these, which others of the same first digit run too (8.6 and 8.9 that of 8.0); and intermediate code of the
/// first one, from which the driver compiles for all others. One target alone takes 2.5 MB of the wheel.
const TARGETS: &str = "80,90,120";

fn main() {
    println!("cargo:rerun-if-changed=cuda");
    for name in ["PEACCEL_CUDA", "PEACCEL_CUDA_TARGETS", "PEACCEL_NVCC", "CUDA_HOME", "CUDA_PATH"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let wanted = env::var("PEACCEL_CUDA").unwrap_or_else(|_| "auto".into());
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let python = env::var_os("CARGO_FEATURE_PYTHON").is_some();
    let outcome = match wanted.as_str() {
        "off" => Err("this build holds no CUDA kernels: PEACCEL_CUDA was off".into()),
        "auto" | "require" if python => nvcc().and_then(|nvcc| compile(&nvcc, &out)),
        "auto" | "require" => Err("this build is not for Python, whose tensors are on GPUs".into()),
        other => panic!("PEACCEL_CUDA is {other:?}, expected auto, require or off"),
    };
    let (images, targets, why) = match outcome {
        Ok((images, targets)) => (images, targets, String::new()),
        Err(why) if python && wanted == "require" => panic!("{why}"),
        Err(why) => (String::new(), String::new(), why),
    };
    let text = format!(
        "/// Of each family and target the name of the family, the target, the bytes of its fatbin, and the fatbin by LZMA.\n\
         /// A static: a constant stands in the wheel as often as it is named.\n\
         pub static IMAGES: &[(&str, Target, usize, &[u8])] = &[{images}];\n\
         /// The targets that they hold code for.\npub const TARGETS: &str = {targets:?};\n\
         /// Why there are none; empty where there are.\npub const WHY_NONE: &str = {why:?};\n"
    );
    std::fs::write(out.join("images.rs"), text).expect("OUT_DIR can be written to");
}

/// The compiler, of the right version.
fn nvcc() -> Result<PathBuf, String> {
    let from = |name: &str| env::var_os(name).map(PathBuf::from);
    let python = env::var("PYO3_PYTHON").unwrap_or_else(|_| "python3".into());
    let find =
        "import importlib.util as u; s = u.find_spec('nvidia'); print(*(s.submodule_search_locations if s else ()))";
    let wheels = Command::new(python).args(["-c", find]).output().map(|out| out.stdout).unwrap_or_default();
    let wheels = String::from_utf8_lossy(&wheels).trim().to_owned();
    let candidates = [
        from("PEACCEL_NVCC"),
        (!wheels.is_empty()).then(|| Path::new(&wheels).join("cu13/bin/nvcc")),
        from("CUDA_HOME").map(|home| home.join("bin/nvcc")),
        from("CUDA_PATH").map(|home| home.join("bin/nvcc")),
        Some("nvcc".into()),
    ];
    let mut others = String::new();
    for nvcc in candidates.into_iter().flatten() {
        let Ok(out) = Command::new(&nvcc).arg("--version").output() else { continue };
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let version = text.split("release ").nth(1).and_then(|rest| rest.split(',').next()).unwrap_or("unknown");
        if version == TOOLKIT {
            return Ok(nvcc);
        }
        let _ = write!(others, "; {} is of version {version}", nvcc.display());
    }
    Err(format!("this build holds no CUDA kernels: it found no nvcc {TOOLKIT}{others}"))
}

/// Entries of `IMAGES`, and the targets.
fn compile(nvcc: &Path, out: &Path) -> Result<(String, String), String> {
    let targets = env::var("PEACCEL_CUDA_TARGETS").unwrap_or_else(|_| TARGETS.into());
    let capabilities: Vec<&str> = targets.split(',').map(str::trim).collect();
    let mut families: Vec<PathBuf> = std::fs::read_dir("cuda/families")
        .map_err(|e| format!("cuda/families: {e}"))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "cu"))
        .collect();
    families.sort();
    // Machine code for each, and intermediate code of the first one where there are several.
    let mut kinds: Vec<(&str, bool)> = capabilities.iter().map(|&target| (target, true)).collect();
    kinds.extend((capabilities.len() > 1).then(|| (capabilities[0], false)));
    // The families of one target together: a compiler takes a gigabyte.
    let small = kinds.len() > 1;
    let of_one = |kind| {
        std::thread::scope(|scope| {
            let runs: Vec<_> =
                families.iter().map(|path| scope.spawn(move || image(nvcc, path, out, kind, small))).collect();
            runs.into_iter().map(|run| run.join().expect("the compiler's output could be read")).collect::<Vec<_>>()
        })
    };
    let compiled = kinds.iter().flat_map(|&kind| of_one(kind));
    let mut images = String::new();
    for outcome in compiled {
        // A kernel that does not compile is an error even where `PEACCEL_CUDA` is `auto`.
        images.push_str(&outcome.unwrap_or_else(|why| panic!("{why}")));
    }
    let names: Vec<String> = kinds.iter().map(|&(target, machine)| name_of(target, machine)).collect();
    Ok((images, names.join(" ")))
}

/// How nvcc calls machine code, or intermediate code, for a capability.
fn name_of(target: &str, machine: bool) -> String {
    format!("{}_{target}", if machine { "sm" } else { "compute" })
}

/// The entry of `IMAGES` of one family and target.
fn image(nvcc: &Path, path: &Path, out: &Path, (target, machine): (&str, bool), small: bool) -> Result<String, String> {
    let family = path.file_stem().expect("a .cu file has a stem").to_string_lossy().into_owned();
    let image = out.join(format!("{family}_{}", name_of(target, machine))).with_extension("fatbin");
    let mut command = Command::new(nvcc);
    // Products and sums are fused where the code says so, as they are where the host runs it.
    command.args(["-std=c++17", "-O3", "-fmad=false", "-fatbin", "-no-compress", "-Werror", "all-warnings"]);
    command.arg(format!("-gencode=arch=compute_{target},code={}", name_of(target, machine)));
    let run = command.arg("-o").arg(&image).arg(path).output().map_err(|e| format!("nvcc: {e}"))?;
    if !run.status.success() {
        let text = [run.stdout, run.stderr].concat();
        return Err(format!("{}: {}", path.display(), String::from_utf8_lossy(&text)));
    }
    let bytes = std::fs::read(&image).map_err(|e| format!("{}: {e}", image.display()))?;
    let packed = image.with_extension("lzma");
    std::fs::write(&packed, compressed(&bytes, small)).map_err(|e| format!("{}: {e}", packed.display()))?;
    let (size, packed) = (bytes.len(), packed.to_string_lossy().into_owned());
    Ok(format!(
        "({family:?}, Target {{ capability: {target}, machine: {machine} }}, {size}, include_bytes!({packed:?})), "
    ))
}

/// An image by LZMA: as small as can be for wheels, else soon.
///
/// One stream sees what the kernels of a family have in common, of which nvcc's own compression, one kernel at a time, sees
/// nothing; a stream for each target, so that a process unpacks no other's. An instruction has sixteen bytes: its place among them says more of a byte than the byte before it.
fn compressed(image: &[u8], small: bool) -> Vec<u8> {
    let mut options = LzmaOptions::with_preset(if small { 9 } else { 1 });
    (options.lc, options.lp, options.pb) = (0, 4, 4);
    let size = Some(image.len() as u64);
    let mut writer = LzmaWriter::new_use_header(Vec::new(), &options, size).expect("the options are in range");
    writer.write_all(image).and_then(|()| writer.finish()).expect("memory can be written to")
}
