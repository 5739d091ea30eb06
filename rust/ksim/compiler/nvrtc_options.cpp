// NVRTC with more options: every call goes to the library that NVRTC_LIBRARY names, simulated or
// real, and what is compiled is compiled with the words of NVRTC_OPTIONS too. So the kernels can be
// built with a definition that the engine does not know.
#include <dlfcn.h>

#include <cstddef>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

using Program = void*;

namespace {

constexpr int INTERNAL_ERROR = 11;

void* symbol(const char* name) {
    static void* library = [] {
        const char* path = getenv("NVRTC_LIBRARY");
        return path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    }();
    return library ? dlsym(library, name) : nullptr;
}

template <typename... T>
int forward(const char* name, T... arguments) {
    auto* function = reinterpret_cast<int (*)(T...)>(symbol(name));
    return function ? function(arguments...) : INTERNAL_ERROR;
}

}  // namespace

#define FORWARD(name, parameters, ...)                                                      \
    extern "C" __attribute__((visibility("default"))) int name parameters {                 \
        return forward(#name, __VA_ARGS__);                                                 \
    }

using Strings = const char* const*;
FORWARD(nvrtcVersion, (int* major, int* minor), major, minor)
FORWARD(nvrtcGetNumSupportedArchs, (int* count), count)
FORWARD(nvrtcGetSupportedArchs, (int* all), all)
FORWARD(nvrtcCreateProgram,
        (Program* out, const char* source, const char* name, int count, Strings headers,
         Strings names),
        out, source, name, count, headers, names)
FORWARD(nvrtcDestroyProgram, (Program* program), program)
FORWARD(nvrtcGetProgramLogSize, (Program program, size_t* size), program, size)
FORWARD(nvrtcGetProgramLog, (Program program, char* log), program, log)
FORWARD(nvrtcGetCUBINSize, (Program program, size_t* size), program, size)
FORWARD(nvrtcGetCUBIN, (Program program, char* image), program, image)
FORWARD(nvrtcGetPTXSize, (Program program, size_t* size), program, size)
FORWARD(nvrtcGetPTX, (Program program, char* image), program, image)

extern "C" __attribute__((visibility("default"))) int nvrtcCompileProgram(Program program,
                                                                          int count,
                                                                          Strings options) {
    std::vector<std::string> more;
    std::istringstream words(getenv("NVRTC_OPTIONS") ? getenv("NVRTC_OPTIONS") : "");
    for (std::string word; words >> word;) more.push_back(word);
    std::vector<const char*> all(options, options + count);
    for (const std::string& word : more) all.push_back(word.c_str());
    return forward("nvrtcCompileProgram", program, static_cast<int>(all.size()), all.data());
}
