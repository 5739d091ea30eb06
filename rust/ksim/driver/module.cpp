// Modules: images made by the simulated compiler are shared objects.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "driver.h"
#include "image.h"

int device_attribute(int which);

namespace {

uint64_t next_function = 1;

// A debugger or a sanitizer's report reads the object's file.
bool keep_files() {
    static const bool keep = getenv("KSIM_KEEP") || dlsym(RTLD_DEFAULT, "__asan_init");
    return keep;
}

CUresult write_object(const unsigned char* bytes, size_t size, std::string& path) {
    const char* folder = getenv("TMPDIR");
    path = std::string(folder && *folder ? folder : "/tmp") + "/ksim-module-XXXXXX";
    int file = mkstemp(path.data());
    if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    while (size) {
        ssize_t written = write(file, bytes, size);
        if (written <= 0) {
            close(file);
            unlink(path.c_str());
            return CUDA_ERROR_OPERATING_SYSTEM;
        }
        bytes += written;
        size -= static_cast<size_t>(written);
    }
    close(file);
    return CUDA_SUCCESS;
}

CUresult load(CUmodule* out, const void* image) {
    if (!out || !image) return CUDA_ERROR_INVALID_VALUE;
    // PTX is text.
    if (*static_cast<const char*>(image) == '\n' || *static_cast<const char*>(image) == '.') {
        return CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
    }
    ImageHeader header;
    memcpy(&header, image, sizeof header);
    const unsigned char* bytes = static_cast<const unsigned char*>(image) + sizeof header;
    if (memcmp(header.magic, IMAGE_MAGIC, sizeof header.magic) != 0) {
        violation("cuModuleLoadData: no image of the simulated compiler (a real cubin?)");
        return CUDA_ERROR_INVALID_IMAGE;
    }
    if (image_hash(bytes, header.bytes) != header.hash) {
        violation("cuModuleLoadData: the image is damaged");
        return CUDA_ERROR_INVALID_IMAGE;
    }
    int sm = settings().sm;
    bool fits = header.is_cubin ? header.sm / 10 == sm / 10 && header.sm <= sm : header.sm <= sm;
    if (!fits) {
        violation("cuModuleLoadData: an image for sm_%d on a device of sm_%d", header.sm, sm);
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    std::string path;
    if (CUresult code = write_object(bytes, header.bytes, path)) return code;
    void* object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!keep_files()) unlink(path.c_str());
    if (!object) {
        violation("cuModuleLoadData: %s", dlerror());
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
    }
    const ksim_object* info = static_cast<ksim_object*>(dlsym(object, "ksim_object_info"));
    if (!info || info->abi != KSIM_ABI) {
        violation("cuModuleLoadData: the image is of another version of the simulator");
        dlclose(object);
        return CUDA_ERROR_INVALID_IMAGE;
    }
    Module* module = new Module;
    module->context = current_context();
    module->object = object;
    module->info = info;
    module->path = path;
    live<Module>().insert(module);
    stats.modules++;
    *out = module;
    return CUDA_SUCCESS;
}

int max_dynamic_shared(const Function* function) {
    int static_bytes = static_cast<int>(function->module->info->static_shared_bytes);
    return std::max(function->max_dynamic_shared, 49152 - static_bytes);
}

CUresult occupancy(const char* call, int* blocks, CUfunction function, int threads,
                   size_t dynamic_shared) {
    Entry entry(call, NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!blocks || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (!alive(function)) return CUDA_ERROR_INVALID_HANDLE;
    *blocks = 0;
    if (static_cast<unsigned>(threads) > function->kernel->max_threads ||
        dynamic_shared > static_cast<size_t>(max_dynamic_shared(function))) {
        return CUDA_SUCCESS;
    }
    int warps = (threads + 31) / 32;
    int shared = static_cast<int>(dynamic_shared + function->module->info->static_shared_bytes) +
                 device_attribute(111);
    int by_threads = device_attribute(39) / (warps * 32);
    int by_shared = shared > 0 ? device_attribute(81) / shared : by_threads;
    *blocks = std::min({by_threads, by_shared, device_attribute(106)});
    return CUDA_SUCCESS;
}

}  // namespace

void unload_module(Module* module) {
    drop_globals(module);
    for (auto& entry : module->functions) live<Function>().erase(entry.second.get());
    live<Module>().erase(module);
    stats.modules--;
    dlclose(module->object);
    if (keep_files()) unlink(module->path.c_str());
    delete module;
}

KSIM_API CUresult cuModuleLoadData(CUmodule* out, const void* image) {
    Entry entry("cuModuleLoadData", NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
    return entry.code ? entry.code : load(out, image);
}

KSIM_API CUresult cuModuleLoadDataEx(CUmodule* out, const void* image, unsigned, int*, void**) {
    Entry entry("cuModuleLoadDataEx", NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
    return entry.code ? entry.code : load(out, image);
}

KSIM_API CUresult cuModuleUnload(CUmodule module) {
    Entry entry("cuModuleUnload", NEEDS_CONTEXT | UNSAFE_IN_CAPTURE | RELEASES);
    if (!alive(module)) {
        violation("cuModuleUnload of a module that is not loaded");
        return entry.released(CUDA_ERROR_INVALID_HANDLE);
    }
    flush_all(module->context);
    unload_module(module);
    return entry.released();
}

KSIM_API CUresult cuModuleGetFunction(CUfunction* out, CUmodule module, const char* name) {
    Entry entry("cuModuleGetFunction", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!out || !name) return CUDA_ERROR_INVALID_VALUE;
    if (!alive(module)) return CUDA_ERROR_INVALID_HANDLE;
    std::unique_ptr<Function>& function = module->functions[name];
    if (!function) {
        void* found = dlsym(module->object, (std::string(name) + "_ksim").c_str());
        if (!found) {
            module->functions.erase(name);
            return CUDA_ERROR_NOT_FOUND;
        }
        function = std::make_unique<Function>();
        function->module = module;
        function->name = name;
        function->kernel = static_cast<const ksim_kernel*>(found);
        function->id = next_function++;
        live<Function>().insert(function.get());
    }
    *out = function.get();
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule module,
                                       const char* name) {
    Entry entry("cuModuleGetGlobal_v2", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    if (!alive(module)) return CUDA_ERROR_INVALID_HANDLE;
    void* found = dlsym(module->object, name);
    Dl_info where;
    const ElfW(Sym)* symbol = nullptr;
    if (!found || !dladdr1(found, &where, reinterpret_cast<void**>(const_cast<ElfW(Sym)**>(&symbol)),
                           RTLD_DL_SYMENT) || !symbol) {
        return CUDA_ERROR_NOT_FOUND;
    }
    add_global(module, reinterpret_cast<uintptr_t>(found), symbol->st_size);
    if (address) *address = reinterpret_cast<uintptr_t>(found);
    if (bytes) *bytes = symbol->st_size;
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuModuleGetLoadingMode(int* mode) {
    Entry entry("cuModuleGetLoadingMode", 0);
    if (entry.code) return entry.code;
    if (!mode) return CUDA_ERROR_INVALID_VALUE;
    *mode = 1;
    return CUDA_SUCCESS;
}

// ---------------------------------------------------------------- functions

KSIM_API CUresult cuFuncGetAttribute(int* value, int which, CUfunction function) {
    Entry entry("cuFuncGetAttribute", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    if (!alive(function)) return CUDA_ERROR_INVALID_HANDLE;
    switch (which) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
            *value = static_cast<int>(function->kernel->max_threads);
            break;
        case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
            *value = static_cast<int>(function->module->info->static_shared_bytes);
            break;
        case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
        case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = settings().sm; break;
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
            *value = max_dynamic_shared(function);
            break;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = function->carveout; break;
        case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
        case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: *value = 0; break;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuFuncSetAttribute(CUfunction function, int which, int value) {
    Entry entry("cuFuncSetAttribute", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!alive(function)) return CUDA_ERROR_INVALID_HANDLE;
    if (which == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        int most = device_attribute(97);
        int fixed = static_cast<int>(function->module->info->static_shared_bytes);
        if (value < 0 || value > most - fixed) {
            violation("%s: %d bytes of dynamic shared memory beside %d static ones; the device "
                      "has %d",
                      function->name.c_str(), value, fixed, most);
            return CUDA_ERROR_INVALID_VALUE;
        }
        function->max_dynamic_shared = value;
    } else if (which == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
        if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
        function->carveout = value;
    } else {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuFuncSetCacheConfig(CUfunction function, int) {
    Entry entry("cuFuncSetCacheConfig", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    return alive(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

KSIM_API CUresult cuFuncLoad(CUfunction function) {
    Entry entry("cuFuncLoad", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    return alive(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

KSIM_API CUresult cuFuncGetName(const char** name, CUfunction function) {
    Entry entry("cuFuncGetName", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    if (!alive(function)) return CUDA_ERROR_INVALID_HANDLE;
    *name = function->name.c_str();
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuFuncGetModule(CUmodule* module, CUfunction function) {
    Entry entry("cuFuncGetModule", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!module) return CUDA_ERROR_INVALID_VALUE;
    if (!alive(function)) return CUDA_ERROR_INVALID_HANDLE;
    *module = function->module;
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function,
                                                              int threads, size_t shared) {
    return occupancy("cuOccupancyMaxActiveBlocksPerMultiprocessor", blocks, function, threads,
                     shared);
}

KSIM_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks,
                                                                       CUfunction function,
                                                                       int threads, size_t shared,
                                                                       unsigned) {
    return occupancy("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", blocks, function,
                     threads, shared);
}
