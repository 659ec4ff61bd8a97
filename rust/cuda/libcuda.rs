//! CUDA's driver: loaded with the first call that needs it, and called in this file only.
//!
//! A missing library, a stub of one, an old driver or a machine without a GPU is an error that says so, never a panic. Kernels
//! are loaded once for all devices; a launch goes to the primary context of its device, which is also torch's, and to the stream
//! that the caller names. Nothing here allocates memory on the device or waits for it.

use super::images::{self, Target, IMAGES, WHY_NONE};
use crate::error::Error;
use libloading::Library;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr, CString, OsStr, OsString};
use std::ptr::null_mut;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The driver of CUDA 13, with whose toolkit the kernels are compiled.
const LEAST_VERSION: c_int = 13_000;
/// CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: the static shared memory that a kernel declares.
const STATIC_SHARED: c_int = 1;
/// CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: until it is raised, what a kernel's static memory leaves of 48 KB.
const MAX_DYNAMIC_SHARED: c_int = 8;
/// CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
const MULTIPROCESSORS: c_int = 16;
/// CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
const MAX_SHARED: c_int = 97;
/// CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
const CAPABILITY: [c_int; 2] = [75, 76];

type Status = c_int;
/// A pointer to an object of the driver, or null.
type Handle = *mut c_void;

/// Declares the driver's functions that are used, and finds them in its library.
macro_rules! functions {
    ($($name:ident: $symbol:literal ($($argument:ty),*);)*) => {
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> Status,)*
        }
        impl Functions {
            fn of(library: &Library) -> Result<Self, String> {
                Ok(Functions {
                    // SAFETY: the signatures are those of cuda.h, which the symbols' versions fix.
                    $($name: *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }
                        .map_err(|_| format!("the driver library lacks {}: it is too old", $symbol))?,)*
                })
            }
        }
    };
}

functions! {
    init: "cuInit" (c_uint);
    driver_version: "cuDriverGetVersion" (*mut c_int);
    error_name: "cuGetErrorName" (Status, *mut *const c_char);
    device_get: "cuDeviceGet" (*mut c_int, c_int);
    device_attribute: "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    primary_context: "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    context_push: "cuCtxPushCurrent_v2" (Handle);
    context_pop: "cuCtxPopCurrent_v2" (*mut Handle);
    library_load: "cuLibraryLoadData" (*mut Handle, *const c_void, Handle, Handle, c_uint, Handle, Handle, c_uint);
    library_kernel: "cuLibraryGetKernel" (*mut Handle, Handle, *const c_char);
    kernel_attribute: "cuKernelGetAttribute" (*mut c_int, c_int, Handle, c_int);
    set_kernel_attribute: "cuKernelSetAttribute" (c_int, c_int, Handle, c_int);
    memset: "cuMemsetD32Async" (u64, c_uint, usize, Handle);
    launch: "cuLaunchKernel" (Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut Handle, Handle);
}

/// A device of this machine.
#[derive(Clone, Copy)]
struct Device {
    number: c_int,
    context: Handle,
    multiprocessors: u32,
    shared: u32,
    target: Target,
}
// SAFETY: a context may be used from any thread that makes it current.
unsafe impl Send for Device {}

/// A kernel on a device.
#[derive(Clone, Copy)]
struct Kernel {
    handle: Handle,
    /// Bytes of dynamic shared memory that a launch may have: all that the device has beside what the kernel declares.
    shared: u32,
}

/// The loaded driver.
pub struct Driver {
    functions: Functions,
    version: c_int,
    /// The loaded images of the families, for each target of which there is a device.
    libraries: Mutex<HashMap<Target, Vec<Handle>>>,
    devices: Mutex<HashMap<i32, Device>>,
    /// The kernels that have been launched, by device and name.
    kernels: Mutex<HashMap<c_int, HashMap<String, Kernel>>>,
}
// SAFETY: handles of libraries and kernels may be used from any thread.
unsafe impl Sync for Driver {}
// SAFETY: the same holds of moving them there.
unsafe impl Send for Driver {}

/// The device and the stream on which a call runs.
#[derive(Clone, Copy)]
pub struct Place {
    /// The number of the device, as torch counts.
    pub device: i32,
    /// The stream, as torch gives it.
    pub stream: u64,
}

impl Place {
    /// A launch of `blocks` blocks, or of `per_multiprocessor` on each multiprocessor where that is fewer.
    pub(super) fn launch(self, blocks: u64, per_multiprocessor: u32, threads: usize) -> Result<Launch, Error> {
        let busy = driver()?.capacities(self.device)?.0 as u64 * u64::from(per_multiprocessor);
        let (grid, block) = ((blocks.min(busy) as u32, 1), threads as u32);
        Ok(Launch { device: self.device, stream: self.stream, grid, block, shared: 0 })
    }
}

/// Where and how a kernel runs.
#[derive(Clone, Copy)]
pub struct Launch {
    /// The number of the device, as torch counts.
    pub device: i32,
    /// The stream, as torch gives it.
    pub stream: u64,
    /// Numbers of blocks, `gridDim.x` and `gridDim.y`.
    pub grid: (u32, u32),
    /// Threads of a block.
    pub block: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

/// The driver, or an error that says why there is none. `PEACCEL_LIBCUDA` names another library than the system's; once one is
/// loaded it is not asked for again, as another thread may be changing the environment.
pub fn driver() -> Result<&'static Driver, Error> {
    static LOADED: OnceLock<Driver> = OnceLock::new();
    if let Some(driver) = LOADED.get() {
        return Ok(driver);
    }
    let path = std::env::var_os("PEACCEL_LIBCUDA")
        .unwrap_or_else(|| OsString::from(if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" }));
    let driver = Driver::load(&path).map_err(Error::Cuda)?;
    Ok(LOADED.get_or_init(|| driver))
}

impl Driver {
    fn load(path: &OsStr) -> Result<Self, String> {
        if IMAGES.is_empty() {
            return Err(WHY_NONE.into());
        }
        // SAFETY: loading the driver's library runs its initialisers, as any program that uses CUDA does.
        let library = unsafe { Library::new(path) }
            .map_err(|_| format!("there is no NVIDIA driver here ({} cannot be loaded)", path.to_string_lossy()))?;
        let functions = Functions::of(&library)?;
        std::mem::forget(library); // its functions are used as long as the process lives
        let (libraries, devices, kernels) = Default::default();
        let mut driver = Driver { functions, version: 0, libraries, devices, kernels };
        let f = &driver.functions;
        // SAFETY: the arguments are those that cuda.h asks for, and outlive the calls.
        unsafe {
            driver.check("cuInit", (f.init)(0))?;
            let mut version = 0;
            driver.check("cuDriverGetVersion", (f.driver_version)(&mut version))?;
            if version < LEAST_VERSION {
                let number = |v: c_int| format!("{}.{}", v / 1000, v % 1000 / 10);
                return Err(format!(
                    "the NVIDIA driver supports CUDA {}, expected {} (driver 580) or later",
                    number(version),
                    number(LEAST_VERSION)
                ));
            }
            driver.version = version;
        }
        Ok(driver)
    }

    /// The CUDA version that the driver supports: 13000 for 13.0.
    pub fn version(&self) -> i32 {
        self.version
    }

    fn check(&self, what: &str, status: Status) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: on success the name is a constant string of the library's.
        let name = unsafe {
            if (self.functions.error_name)(status, &mut name) == 0 && !name.is_null() {
                CStr::from_ptr(name).to_string_lossy().into_owned()
            } else {
                format!("error {status}")
            }
        };
        Err(format!("{what}: {name}"))
    }

    /// The images of all families for a target, loaded at their first use.
    fn libraries(&self, target: Target) -> Result<Vec<Handle>, String> {
        let mut all = self.libraries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = all.get(&target) {
            return Ok(loaded.clone());
        }
        let mut libraries = Vec::new();
        for (family, image) in images::unpacked(target) {
            let image = image.map_err(|why| format!("unpacking the kernels of {family}: {why}"))?;
            let (mut library, none, load) = (null_mut(), null_mut(), self.functions.library_load);
            // SAFETY: the image is a whole fatbin, which the driver copies.
            let status = unsafe { load(&mut library, image.as_ptr().cast(), none, none, 0, none, none, 0) };
            self.check(&format!("loading the kernels of {family}"), status)?;
            libraries.push(library);
        }
        all.insert(target, libraries.clone());
        Ok(libraries)
    }

    fn device(&self, number: i32) -> Result<Device, String> {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&device) = devices.get(&number) {
            return Ok(device);
        }
        let f = &self.functions;
        let target = Target { capability: 0, machine: true };
        let mut device = Device { number: 0, context: null_mut(), multiprocessors: 1, shared: 0, target };
        let (mut count, mut shared, mut major, mut minor) = (0, 0, 0, 0);
        // SAFETY: the arguments are those that cuda.h asks for, and outlive the calls.
        unsafe {
            self.check("cuDeviceGet", (f.device_get)(&mut device.number, number))?;
            self.check("cuDevicePrimaryCtxRetain", (f.primary_context)(&mut device.context, device.number))?;
            let [of_major, of_minor] = CAPABILITY;
            let asked = [MULTIPROCESSORS, MAX_SHARED, of_major, of_minor];
            for (value, attribute) in [&mut count, &mut shared, &mut major, &mut minor].into_iter().zip(asked) {
                self.check("cuDeviceGetAttribute", (f.device_attribute)(value, attribute, device.number))?;
            }
        }
        device.target = Target::of(10 * major + minor).ok_or_else(|| {
            format!("there are no kernels for compute capability {major}.{minor}, only {}", images::TARGETS)
        })?;
        (device.multiprocessors, device.shared) = (count.max(1) as u32, shared.max(0) as u32);
        devices.insert(number, device);
        Ok(device)
    }

    fn kernel(&self, name: &str, device: Device) -> Result<Kernel, String> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        let kernels = kernels.entry(device.number).or_default();
        if let Some(&kernel) = kernels.get(name) {
            return Ok(kernel);
        }
        let symbol = CString::new(name).map_err(|_| format!("{name:?} names no kernel"))?;
        for library in self.libraries(device.target)? {
            let mut handle = null_mut();
            // SAFETY: the library is loaded, the name ends in 0.
            if unsafe { (self.functions.library_kernel)(&mut handle, library, symbol.as_ptr()) } == 0 {
                let kernel = Kernel { handle, shared: self.raise_shared(name, handle, device)? };
                kernels.insert(name.into(), kernel);
                return Ok(kernel);
            }
        }
        Err(format!("there is no CUDA kernel {name}"))
    }

    /// Allows launches of a kernel all the shared memory that a block of the device may have beside what the kernel declares, and
    /// returns how many bytes that is. Done once, as two threads that set it before each launch would undo each other's setting.
    fn raise_shared(&self, name: &str, handle: Handle, device: Device) -> Result<u32, String> {
        let f = &self.functions;
        let mut fixed = 0;
        // SAFETY: the kernel is loaded, and the device is one of the driver's.
        unsafe {
            self.check(name, (f.kernel_attribute)(&mut fixed, STATIC_SHARED, handle, device.number))?;
            let left = device.shared.saturating_sub(fixed as u32);
            self.check(name, (f.set_kernel_attribute)(MAX_DYNAMIC_SHARED, left as c_int, handle, device.number))?;
            Ok(left)
        }
    }

    /// How many multiprocessors a device has, and how many bytes of shared memory a block may use.
    pub fn capacities(&self, device: i32) -> Result<(usize, usize), Error> {
        let device = self.device(device).map_err(Error::Cuda)?;
        Ok((device.multiprocessors as usize, device.shared as usize))
    }

    /// Puts a kernel on its stream.
    ///
    /// # Safety
    /// `arguments` must be the kernel's own struct, and what it points to must be memory of the device, of the sizes it says,
    /// until the stream has run the kernel.
    pub unsafe fn launch<A: Copy>(&self, name: &str, at: Launch, arguments: &A) -> Result<(), Error> {
        if at.grid.0 == 0 || at.grid.1 == 0 {
            return Ok(()); // the driver refuses launches of no blocks
        }
        let f = &self.functions;
        let run = |device: Device| {
            let Kernel { handle, shared } = self.kernel(name, device)?;
            if at.shared > shared {
                let wants = format!("wants {} bytes of shared memory beside its own", at.shared);
                return Err(format!("{name}: {wants}, device {} has {shared}", at.device));
            }
            let (mut held, (x, y), stream) = ([std::ptr::from_ref(arguments).cast_mut().cast()], at.grid, at.stream);
            let (arguments, stream, none) = (held.as_mut_ptr(), stream as Handle, null_mut());
            let status = (f.launch)(handle, x, y, 1, at.block, 1, 1, at.shared, stream, arguments, none);
            self.check(name, status)
        };
        self.in_context(at.device, || self.device(at.device).and_then(run))?.map_err(Error::Cuda)
    }

    /// Puts zeros into so many words of the device's memory, on a stream.
    ///
    /// # Safety
    /// As [`Driver::launch`].
    pub unsafe fn fill_with_zeros(&self, at: Place, address: u64, words: usize) -> Result<(), Error> {
        if words == 0 {
            return Ok(()); // as of launches
        }
        let status = self.in_context(at.device, || (self.functions.memset)(address, 0, words, at.stream as Handle))?;
        self.check("cuMemsetD32Async", status).map_err(Error::Cuda)
    }

    /// Runs a function while the context of a device is current.
    pub(super) fn in_context<T>(&self, device: i32, run: impl FnOnce() -> T) -> Result<T, Error> {
        let f = &self.functions;
        let run_there = || {
            let device = self.device(device)?;
            // SAFETY: the context is the device's, and is popped again.
            unsafe {
                self.check("cuCtxPushCurrent", (f.context_push)(device.context))?;
                let outcome = run();
                let mut popped = null_mut();
                self.check("cuCtxPopCurrent", (f.context_pop)(&mut popped))?;
                Ok(outcome)
            }
        };
        run_there().map_err(Error::Cuda)
    }
}
