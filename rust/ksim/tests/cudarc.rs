//! The simulated libraries through the bindings that the product uses, found by name once they are
//! loaded: cudarc panics on a missing symbol, and its structs are the ones to agree with.

use std::ffi::{c_int, c_void, CString};
use std::mem::{offset_of, size_of};
use std::ptr::{null, null_mut};

use cudarc::driver::sys;
use cudarc::nvrtc::sys as nvrtc;

const SOURCE: &str = r#"
struct P { float* x; unsigned n, unused; };
KSIM_KERNEL(scale, P, 256, 1) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    sim::pdl_wait();
    if (i < p.n) p.x[i] = 2 * p.x[i] + 1;
}
"#;

/// All of its bytes are fields: the driver looks at each word for addresses of the host, and bytes that pad
/// a struct may hold any.
#[repr(C)]
struct Params {
    x: u64,
    n: u32,
    unused: u32,
}

fn ok(code: sys::CUresult) {
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
}

fn compile(source: &str) -> Vec<u8> {
    let source = CString::new(source).unwrap();
    let option = CString::new("--gpu-architecture=sm_90").unwrap();
    let options = [option.as_ptr()];
    let mut program = null_mut();
    let mut bytes = 0;
    // SAFETY: all pointers are to live values of the types NVRTC documents; the image buffer has
    // the size that NVRTC names.
    unsafe {
        let name = c"scale.cu".as_ptr();
        let made =
            nvrtc::nvrtcCreateProgram(&mut program, source.as_ptr(), name, 0, null(), null());
        assert_eq!(made, nvrtc::nvrtcResult::NVRTC_SUCCESS);
        let code = nvrtc::nvrtcCompileProgram(program, 1, options.as_ptr());
        let mut size = 0;
        nvrtc::nvrtcGetProgramLogSize(program, &mut size);
        let mut log = vec![0u8; size];
        nvrtc::nvrtcGetProgramLog(program, log.as_mut_ptr().cast());
        assert_eq!(
            code,
            nvrtc::nvrtcResult::NVRTC_SUCCESS,
            "{}",
            String::from_utf8_lossy(&log)
        );
        nvrtc::nvrtcGetCUBINSize(program, &mut bytes);
        let mut image = vec![0u8; bytes];
        nvrtc::nvrtcGetCUBIN(program, image.as_mut_ptr().cast());
        nvrtc::nvrtcDestroyProgram(&mut program);
        image
    }
}

/// The numbers that driver/cuda_types.h asserts of its own structs.
#[test]
fn structs_agree_with_cudarc() {
    assert_eq!(size_of::<sys::CUlaunchConfig>(), 56);
    assert_eq!(offset_of!(sys::CUlaunchConfig, hStream), 32);
    assert_eq!(offset_of!(sys::CUlaunchConfig, attrs), 40);
    assert_eq!(size_of::<sys::CUlaunchAttribute>(), 72);
    assert_eq!(offset_of!(sys::CUlaunchAttribute, value), 8);
    assert_eq!(size_of::<sys::CUDA_KERNEL_NODE_PARAMS>(), 72);
    assert_eq!(offset_of!(sys::CUDA_KERNEL_NODE_PARAMS, kernelParams), 40);
    assert_eq!(size_of::<sys::CUgraphEdgeData>(), 8);
    assert_eq!(size_of::<sys::CUgraphExecUpdateResultInfo>(), 24);
    assert_eq!(size_of::<sys::CUDA_GRAPH_INSTANTIATE_PARAMS>(), 32);
    assert_eq!(size_of::<sys::CUuuid>(), 16);
    let programmatic =
        sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    assert_eq!(programmatic as u32, 6);
    let edge = sys::CUgraphDependencyType::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
    assert_eq!(edge as u32, 1);
}

#[test]
fn compiles_captures_and_replays() {
    ksim::preload().unwrap();
    // SAFETY: asks for the libraries by name, runs no other code of theirs.
    unsafe {
        assert!(sys::is_culib_present());
        assert!(nvrtc::is_culib_present());
    }
    let image = compile(SOURCE);
    let start: Vec<f32> = (0..300_u16).map(f32::from).collect();
    let mut end = vec![0f32; start.len()];
    let bytes = size_of_val(start.as_slice());
    // SAFETY: handles are used while they are alive, and every buffer is as long as said.
    unsafe {
        ok(sys::cuInit(0));
        let mut context = null_mut();
        ok(sys::cuDevicePrimaryCtxRetain(&mut context, 0));
        ok(sys::cuCtxSetCurrent(context));
        let mut module = null_mut();
        ok(sys::cuModuleLoadData(&mut module, image.as_ptr().cast()));
        let mut function = null_mut();
        ok(sys::cuModuleGetFunction(
            &mut function,
            module,
            c"scale".as_ptr(),
        ));
        let mut x = 0;
        ok(sys::cuMemAlloc_v2(&mut x, bytes));
        ok(sys::cuMemcpyHtoD_v2(x, start.as_ptr().cast(), bytes));
        let mut stream = null_mut();
        ok(sys::cuStreamCreate(&mut stream, 1));

        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue {
                programmaticStreamSerializationAllowed: 1,
            },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: 2,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 256,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream,
            attrs: &mut attribute,
            numAttrs: 1,
        };
        let mut params = Params {
            x,
            n: 300,
            unused: 0,
        };
        let mut pointers = [(&raw mut params).cast::<c_void>()];
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        ok(sys::cuStreamBeginCapture_v2(stream, mode));
        for _ in 0..2 {
            ok(sys::cuLaunchKernelEx(
                &config,
                function,
                pointers.as_mut_ptr(),
                null_mut(),
            ));
        }
        let mut graph = null_mut();
        ok(sys::cuStreamEndCapture(stream, &mut graph));

        let mut count = 1;
        let (mut from, mut to) = (null_mut(), null_mut());
        let mut edge: sys::CUgraphEdgeData = std::mem::zeroed();
        ok(sys::cuGraphGetEdges_v2(
            graph, &mut from, &mut to, &mut edge, &mut count,
        ));
        assert_eq!((count, edge.type_, edge.from_port), (1, 1, 1));

        let mut replay = null_mut();
        ok(sys::cuGraphInstantiateWithFlags(&mut replay, graph, 0));
        ok(sys::cuGraphLaunch(replay, stream));
        ok(sys::cuStreamSynchronize(stream));
        ok(sys::cuMemcpyDtoH_v2(end.as_mut_ptr().cast(), x, bytes));

        let mut text = null();
        ok(sys::cuGetErrorName(
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY,
            &mut text,
        ));
        assert_eq!(std::ffi::CStr::from_ptr(text), c"CUDA_ERROR_OUT_OF_MEMORY");
        let mut major: c_int = 0;
        let which = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
        ok(sys::cuDeviceGetAttribute(&mut major, which, 0));
        assert_eq!(major, 9);

        ok(sys::cuGraphExecDestroy(replay));
        ok(sys::cuGraphDestroy(graph));
        ok(sys::cuStreamDestroy_v2(stream));
        ok(sys::cuMemFree_v2(x));
        ok(sys::cuModuleUnload(module));
        ok(sys::cuDevicePrimaryCtxRelease_v2(0));
    }
    let expected: Vec<f32> = start.iter().map(|x| 2.0 * (2.0 * x + 1.0) + 1.0).collect();
    assert_eq!(end, expected);
}
