// The simulated run-time compiler: g++ with the shim before the source.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "driver.h"
#include "image.h"

extern char** environ;

enum nvrtcResult {
    NVRTC_SUCCESS = 0,
    NVRTC_ERROR_OUT_OF_MEMORY = 1,
    NVRTC_ERROR_PROGRAM_CREATION_FAILURE = 2,
    NVRTC_ERROR_INVALID_INPUT = 3,
    NVRTC_ERROR_INVALID_PROGRAM = 4,
    NVRTC_ERROR_INVALID_OPTION = 5,
    NVRTC_ERROR_COMPILATION = 6,
    NVRTC_ERROR_BUILTIN_OPERATION_FAILURE = 7,
    NVRTC_ERROR_INTERNAL_ERROR = 11,
};

struct Program {
    std::string name;
    std::string source;
    std::vector<std::pair<std::string, std::string>> headers;
    std::string log;
    std::string image;
    bool is_cubin = true;
    bool compiled = false;
};

namespace {

// The shim's files, part of this library.
#define SHIM_FILE(symbol, path)                                  \
    asm(".pushsection .rodata\n"                                 \
        ".globl shim_" #symbol "\n.hidden shim_" #symbol "\n"    \
        "shim_" #symbol ":\n.incbin \"" path "\"\n.byte 0\n"     \
        ".popsection\n");                                        \
    extern "C" const char shim_##symbol[] __attribute__((visibility("hidden")));
SHIM_FILE(ksim, KSIM_SHIM "/ksim.h")
SHIM_FILE(abi, KSIM_SHIM "/abi.h")
SHIM_FILE(types, KSIM_SHIM "/types.h")
SHIM_FILE(fiber, KSIM_SHIM "/fiber.h")
SHIM_FILE(warp, KSIM_SHIM "/warp.h")
SHIM_FILE(grid, KSIM_SHIM "/grid.h")
SHIM_FILE(numerics, KSIM_SHIM "/numerics.h")
SHIM_FILE(copies, KSIM_SHIM "/copies.h")
SHIM_FILE(products, KSIM_SHIM "/products.h")
SHIM_FILE(builtins, KSIM_SHIM "/builtins.h")
SHIM_FILE(runtime, KSIM_SHIM "/runtime.cpp")
SHIM_FILE(fiber_code, KSIM_SHIM "/fiber.cpp")
SHIM_FILE(warp_code, KSIM_SHIM "/warp.cpp")
SHIM_FILE(grid_code, KSIM_SHIM "/grid.cpp")
SHIM_FILE(copies_code, KSIM_SHIM "/copies.cpp")
SHIM_FILE(fragments, KSIM_SHIM "/fragments.cpp")
SHIM_FILE(products_code, KSIM_SHIM "/products.cpp")

const struct {
    const char* name;
    const char* text;
} shim[] = {
    {"ksim.h", shim_ksim},       {"abi.h", shim_abi},           {"types.h", shim_types},
    {"fiber.h", shim_fiber},     {"warp.h", shim_warp},         {"grid.h", shim_grid},
    {"numerics.h", shim_numerics}, {"copies.h", shim_copies},
    {"builtins.h", shim_builtins}, {"runtime.cpp", shim_runtime},
    {"fiber.cpp", shim_fiber_code}, {"warp.cpp", shim_warp_code},
    {"grid.cpp", shim_grid_code},   {"copies.cpp", shim_copies_code},
    {"fragments.cpp", shim_fragments}, {"products.h", shim_products},
    {"products.cpp", shim_products_code},
};

const int ARCHITECTURES[] = {75, 80, 86, 87, 89, 90, 100, 120};

std::set<Program*> programs;

struct {
    long long remaining = 0;
    nvrtcResult code = NVRTC_ERROR_INTERNAL_ERROR;
} injected;

// Counts the call; a refusal is what it must return.
nvrtcResult enter(const char* call, Program* program, bool needs_program) {
    std::lock_guard<std::recursive_mutex> guard(driver_lock);
    verbose("%s", call);
    if (injected.remaining > 0 && --injected.remaining == 0) {
        say("%s fails with %d, as asked for", call, injected.code);
        return injected.code;
    }
    if (needs_program && !programs.count(program)) return NVRTC_ERROR_INVALID_PROGRAM;
    return NVRTC_SUCCESS;
}

bool write_file(const std::string& path, const std::string& text) {
    std::error_code failed;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), failed);
    std::ofstream file(path, std::ios::binary);
    file << text;
    return static_cast<bool>(file.flush());
}

std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

// What is compiled instead of `text`, if KSIM_KERNELS names a folder with a file of that name.
std::string replaced(const std::string& name, const char* text) {
    const char* folder = getenv("KSIM_KERNELS");
    if (!folder || !*folder || name.empty() || name.find('/') != std::string::npos) return text;
    std::string other = read_file(std::string(folder) + "/" + name);
    return other.empty() ? text : other;
}

// Everything this process writes for one compilation; gone afterwards unless KSIM_KEEP is set.
class Folder {
public:
    Folder() {
        const char* parent = getenv("TMPDIR");
        path = std::string(parent && *parent ? parent : "/tmp") + "/ksim-compile-XXXXXX";
        if (!mkdtemp(path.data())) path.clear();
    }
    ~Folder() {
        if (path.empty() || getenv("KSIM_KEEP")) return;
        std::error_code failed;
        std::filesystem::remove_all(path, failed);
        if (failed) say("%s stays behind: %s", path.c_str(), failed.message().c_str());
    }
    std::string path;
};

// Runs the command with its output in a file; -1 where it could not be started.
int run(const std::vector<std::string>& command, const std::string& output) {
    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                     0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    // The compiler is no part of what is being sanitized.
    std::vector<char*> environment;
    for (char** at = environ; *at; at++) {
        if (strncmp(*at, "LD_PRELOAD=", 11) != 0) environment.push_back(*at);
    }
    environment.push_back(nullptr);
    pid_t child;
    int failed = posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(),
                              environment.data());
    posix_spawn_file_actions_destroy(&actions);
    if (failed) return -1;
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

void replace_all(std::string& text, const std::string& what, const std::string& by) {
    for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size()) {
        text.replace(at, what.size(), by);
    }
}

struct Options {
    int sm = 75;
    bool is_cubin = false;
    std::vector<std::string> pass;
};

bool starts_with(const std::string& text, const char* prefix) {
    return text.compare(0, strlen(prefix), prefix) == 0;
}

// NVRTC's options: those that mean something here, those that do not, and the rest is an error.
bool parse(const std::vector<std::string>& given, Options& options, std::string& log) {
    auto value_of = [&](size_t& i, const char* name, std::string& value) {
        const std::string& word = given[i];
        if (starts_with(word, name) && word[strlen(name)] == '=') {
            value = word.substr(strlen(name) + 1);
            return true;
        }
        if (word == name && i + 1 < given.size()) {
            value = given[++i];
            return true;
        }
        return false;
    };
    static const char* const ignored[] = {
        "--std", "-std", "--ptxas-options", "-Xptxas", "--maxrregcount", "-maxrregcount",
        "--fmad", "-fmad", "--ftz", "-ftz", "--prec-div", "-prec-div", "--prec-sqrt",
        "-prec-sqrt", "--diag-suppress", "-diag-suppress", "--split-compile", "-split-compile",
        "--extra-device-vectorization", "-extra-device-vectorization", "--include-path", "-I",
        "--device-debug", "-G", "--generate-line-info", "-lineinfo", "--restrict", "-restrict",
        "--default-device", "-default-device", "--device-as-default-execution-space", "-w",
        "--disable-warnings", "--no-cache", "-no-cache", "--minimal", "-minimal",
    };
    static const char* const takes_word[] = {"--std", "-std", "--ptxas-options", "-Xptxas",
                                             "--include-path", "-I", "--maxrregcount",
                                             "-maxrregcount", "--diag-suppress"};
    for (size_t i = 0; i < given.size(); i++) {
        std::string value;
        if (value_of(i, "--gpu-architecture", value) || value_of(i, "-arch", value)) {
            options.is_cubin = starts_with(value, "sm_");
            if (!options.is_cubin && !starts_with(value, "compute_")) {
                log += "nvrtc: error: invalid value for --gpu-architecture (-arch)\n";
                return false;
            }
            options.sm = atoi(value.c_str() + value.find('_') + 1);
            bool known = false;
            for (int sm : ARCHITECTURES) known |= sm == options.sm;
            if (!known) {
                log += "nvrtc: error: invalid value for --gpu-architecture (-arch)\n";
                return false;
            }
            continue;
        }
        if (value_of(i, "--define-macro", value) || value_of(i, "-D", value)) {
            options.pass.push_back("-D" + value);
            continue;
        }
        if (value_of(i, "--undefine-macro", value) || value_of(i, "-U", value)) {
            options.pass.push_back("-U" + value);
            continue;
        }
        if (starts_with(given[i], "-D") || starts_with(given[i], "-U")) {
            options.pass.push_back(given[i]);
            continue;
        }
        bool skip = starts_with(given[i], "-I");
        for (const char* name : ignored) {
            skip |= given[i] == name || starts_with(given[i], (std::string(name) + "=").c_str());
        }
        if (!skip) {
            log += "nvrtc: error: unrecognized option " + given[i] + " found\n";
            return false;
        }
        for (const char* name : takes_word) {
            if (given[i] == name && i + 1 < given.size()) {
                i++;
                break;
            }
        }
    }
    return true;
}

std::string image_of(const std::string& object, const Options& options) {
    ImageHeader header = {};
    memcpy(header.magic, IMAGE_MAGIC, sizeof header.magic);
    header.sm = options.sm;
    header.is_cubin = options.is_cubin;
    header.bytes = object.size();
    header.hash = image_hash(object.data(), object.size());
    return std::string(reinterpret_cast<char*>(&header), sizeof header) + object;
}

// The name of a file that depends on all of `text`.
std::string name_of(const std::string& text) {
    char name[64];
    snprintf(name, sizeof name, "/%016llx%016llx",
             static_cast<unsigned long long>(image_hash(text.data(), text.size())),
             static_cast<unsigned long long>(image_hash(text.data(), text.size(), 0x2545f491)));
    return name;
}

// Where what is compiled is kept between processes, if KSIM_CACHE says so.
std::string cache_folder() {
    const char* folder = getenv("KSIM_CACHE");
    return folder ? folder : "";
}

std::string text_of(const std::vector<std::string>& command) {
    std::string all;
    for (const std::string& word : command) all += '\0' + word;
    for (const auto& file : shim) all += std::string("\0", 1) + file.text;
    return all;
}

// Where the same program's object is kept between processes, if it is.
std::string cache_path(const Program& program, const std::vector<std::string>& command) {
    if (cache_folder().empty()) return "";
    std::string all = program.source;
    for (const auto& header : program.headers) all += '\0' + header.first + '\0' + header.second;
    return cache_folder() + name_of(all + text_of(command)) + ".so";
}

// The folder with the shim, its header compiled ahead and its runtime an object, both by `flags`, and
// with what the compiler said of them in `log`: made once a process, or once where there is a cache.
// Empty where it cannot be made; `status` is then the compiler's.
std::string shim_folder(const std::vector<std::string>& flags, std::string& log, int& status) {
    static std::mutex lock;
    static Folder own;
    std::lock_guard<std::mutex> guard(lock);
    const std::string parent = cache_folder().empty() ? own.path : cache_folder();
    const std::string folder = parent + name_of(text_of(flags));
    status = 0;
    if (parent.empty() || std::filesystem::exists(folder)) return parent.empty() ? "" : folder;
    // Others look for the folder by its name, which it gets once all is in it.
    const std::string partial = folder + "." + std::to_string(getpid());
    bool written = true;
    for (const auto& file : shim) written &= write_file(partial + "/" + file.name, file.text);
    std::vector<std::string> ahead = flags, runtime = flags;
    ahead.insert(ahead.end(), {"-x", "c++-header", "-o", partial + "/ksim.h.gch",
                               partial + "/ksim.h"});
    // Compiled once, and run by every kernel.
    runtime.insert(runtime.end(), {"-O2", "-x", "c++", "-c", "-o", partial + "/runtime.o",
                                   partial + "/runtime.cpp"});
    // In this order: the runtime is compiled by other options than the header.
    for (const auto& command : {runtime, ahead}) {
        if (!written || status) break;
        status = run(command, partial + "/log");
    }
    log = read_file(partial + "/log");
    std::error_code failed;
    if (written && !status) {
        std::filesystem::rename(partial, folder, failed);
        if (!failed || std::filesystem::exists(folder)) {
            std::filesystem::remove_all(partial, failed);
            return folder;
        }
    }
    std::filesystem::remove_all(partial, failed);
    return "";
}

nvrtcResult compile(Program& program, const std::vector<std::string>& given) {
    program.log.clear();
    program.image.clear();
    program.compiled = false;
    Options options;
    if (!parse(given, options, program.log)) return NVRTC_ERROR_INVALID_OPTION;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("f16c")) {
        program.log = "ksim: this processor lacks AVX2, FMA or F16C\n";
        return NVRTC_ERROR_INTERNAL_ERROR;
    }
    const char* compiler = getenv("KSIM_CXX");
    // Most kernels run for less time than they are compiled for, and -O2 compiles for twice as long.
    std::vector<std::string> flags = {compiler && *compiler ? compiler : "g++",
        "-std=c++17", "-O1", "-g1", "-fPIC", "-fvisibility=hidden",
        "-mavx2", "-mfma", "-mf16c", "-ffp-contract=off", "-fno-math-errno", "-fno-exceptions",
        "-fno-rtti", "-fno-strict-aliasing", "-fno-threadsafe-statics", "-fno-gnu-unique",
        "-nostdinc++", "-w", "-D__CUDACC__", "-D__CUDACC_RTC__"};
    if (const char* more = getenv("KSIM_CXXFLAGS")) {
        std::istringstream words(more);
        for (std::string word; words >> word;) flags.push_back(word);
    }
    program.is_cubin = options.is_cubin;
    std::vector<std::string> command = flags;
    command.insert(command.end(), {"-shared", "-Wl,-Bsymbolic",
                                   "-D__CUDA_ARCH__=" + std::to_string(options.sm * 10)});
    command.insert(command.end(), options.pass.begin(), options.pass.end());
    std::string cached = cache_path(program, command);
    if (!cached.empty()) {
        std::string object = read_file(cached);
        if (!object.empty()) {
            program.image = image_of(object, options);
            program.compiled = true;
            return NVRTC_SUCCESS;
        }
    }
    Folder folder;
    if (folder.path.empty()) {
        program.log = "ksim: no temporary folder\n";
        return NVRTC_ERROR_INTERNAL_ERROR;
    }
    std::string source = program.name.empty() ? "default_program" : program.name;
    replace_all(source, "/", "_");
    bool written = write_file(folder.path + "/" + source, program.source);
    for (const auto& header : program.headers) {
        if (header.first.find("..") != std::string::npos) return NVRTC_ERROR_INVALID_INPUT;
        written &= write_file(folder.path + "/include/" + header.first, header.second);
    }
    if (!written) {
        program.log = "ksim: cannot write to " + folder.path + "\n";
        return NVRTC_ERROR_INTERNAL_ERROR;
    }
    int status = 0;
    const std::string shim_path = shim_folder(flags, program.log, status);
    if (!shim_path.empty()) {
        command.insert(command.end(),
                       {"-include", shim_path + "/ksim.h", "-I" + folder.path + "/include", "-o",
                        folder.path + "/object.so", "-x", "c++", folder.path + "/" + source, "-x",
                        "none", shim_path + "/runtime.o", "-lm"});
        status = run(command, folder.path + "/log");
        program.log = read_file(folder.path + "/log");
    } else if (status == 0) {
        program.log = "ksim: no folder for what all kernels share\n";
        return NVRTC_ERROR_INTERNAL_ERROR;
    }
    {
        std::lock_guard<std::recursive_mutex> guard(driver_lock);
        stats.compiles++;
    }
    if (status == -1 || status == 127) {
        program.log = "ksim: the simulated compiler needs " + flags[0] +
                      ", which is not on PATH: install it or set KSIM_CXX\n";
        return NVRTC_ERROR_BUILTIN_OPERATION_FAILURE;
    }
    replace_all(program.log, folder.path + "/include/", "");
    replace_all(program.log, folder.path + "/", "");
    if (status != 0) return NVRTC_ERROR_COMPILATION;
    std::string object = read_file(folder.path + "/object.so");
    if (object.empty()) return NVRTC_ERROR_INTERNAL_ERROR;
    if (!cached.empty()) {
        std::string partial = cached + "." + std::to_string(getpid()) + "." +
                              std::to_string(reinterpret_cast<uintptr_t>(&program));
        if (write_file(partial, object)) rename(partial.c_str(), cached.c_str());
    }
    program.image = image_of(object, options);
    program.compiled = true;
    return NVRTC_SUCCESS;
}

nvrtcResult image_size(const char* call, Program* program, size_t* bytes, bool cubin) {
    if (nvrtcResult code = enter(call, program, true)) return code;
    if (!bytes) return NVRTC_ERROR_INVALID_INPUT;
    if (!program->compiled) return NVRTC_ERROR_INVALID_PROGRAM;
    // With sm_XX there is a cubin and PTX beside it, with compute_XX only PTX.
    *bytes = cubin && !program->is_cubin ? 0 : program->image.size();
    return NVRTC_SUCCESS;
}

nvrtcResult image_bytes(const char* call, Program* program, char* out, bool cubin) {
    if (nvrtcResult code = enter(call, program, true)) return code;
    if (!out || !program->compiled || (cubin && !program->is_cubin)) {
        return NVRTC_ERROR_INVALID_PROGRAM;
    }
    memcpy(out, program->image.data(), program->image.size());
    if (!cubin) reinterpret_cast<ImageHeader*>(out)->is_cubin = 0;
    return NVRTC_SUCCESS;
}

}  // namespace

KSIM_API nvrtcResult nvrtcVersion(int* major, int* minor) {
    if (nvrtcResult code = enter("nvrtcVersion", nullptr, false)) return code;
    if (!major || !minor) return NVRTC_ERROR_INVALID_INPUT;
    *major = 12, *minor = 9;
    if (const char* version = getenv("KSIM_NVRTC_VERSION")) {
        if (sscanf(version, "%d.%d", major, minor) != 2) return NVRTC_ERROR_INTERNAL_ERROR;
    }
    return NVRTC_SUCCESS;
}

KSIM_API const char* nvrtcGetErrorString(nvrtcResult code) {
    static const char* const names[] = {
        "NVRTC_SUCCESS", "NVRTC_ERROR_OUT_OF_MEMORY", "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
        "NVRTC_ERROR_INVALID_INPUT", "NVRTC_ERROR_INVALID_PROGRAM", "NVRTC_ERROR_INVALID_OPTION",
        "NVRTC_ERROR_COMPILATION", "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
    };
    if (code >= 0 && static_cast<size_t>(code) < sizeof names / sizeof names[0]) return names[code];
    return code == NVRTC_ERROR_INTERNAL_ERROR ? "NVRTC_ERROR_INTERNAL_ERROR"
                                              : "NVRTC_ERROR unknown";
}

KSIM_API nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
    if (nvrtcResult code = enter("nvrtcGetNumSupportedArchs", nullptr, false)) return code;
    if (!count) return NVRTC_ERROR_INVALID_INPUT;
    *count = sizeof ARCHITECTURES / sizeof ARCHITECTURES[0];
    return NVRTC_SUCCESS;
}

KSIM_API nvrtcResult nvrtcGetSupportedArchs(int* out) {
    if (nvrtcResult code = enter("nvrtcGetSupportedArchs", nullptr, false)) return code;
    if (!out) return NVRTC_ERROR_INVALID_INPUT;
    memcpy(out, ARCHITECTURES, sizeof ARCHITECTURES);
    return NVRTC_SUCCESS;
}

KSIM_API nvrtcResult nvrtcCreateProgram(Program** out, const char* source, const char* name,
                                        int header_count, const char* const* headers,
                                        const char* const* names) {
    if (nvrtcResult code = enter("nvrtcCreateProgram", nullptr, false)) return code;
    if (!out || !source || header_count < 0 || (header_count > 0 && (!headers || !names))) {
        return NVRTC_ERROR_INVALID_INPUT;
    }
    Program* program = new Program;
    program->name = name ? name : "";
    program->source = replaced(program->name, source);
    for (int i = 0; i < header_count; i++) {
        program->headers.push_back({names[i], replaced(names[i], headers[i])});
    }
    std::lock_guard<std::recursive_mutex> guard(driver_lock);
    programs.insert(program);
    stats.programs++;
    *out = program;
    return NVRTC_SUCCESS;
}

KSIM_API nvrtcResult nvrtcDestroyProgram(Program** program) {
    std::lock_guard<std::recursive_mutex> guard(driver_lock);
    if (!program || !programs.erase(*program)) return NVRTC_ERROR_INVALID_PROGRAM;
    stats.programs--;
    delete *program;
    *program = nullptr;
    return NVRTC_SUCCESS;
}

KSIM_API nvrtcResult nvrtcCompileProgram(Program* program, int count, const char* const* options) {
    if (nvrtcResult code = enter("nvrtcCompileProgram", program, true)) return code;
    if (count < 0 || (count > 0 && !options)) return NVRTC_ERROR_INVALID_INPUT;
    return compile(*program, std::vector<std::string>(options, options + count));
}

KSIM_API nvrtcResult nvrtcGetCUBINSize(Program* program, size_t* bytes) {
    return image_size("nvrtcGetCUBINSize", program, bytes, true);
}
KSIM_API nvrtcResult nvrtcGetCUBIN(Program* program, char* out) {
    return image_bytes("nvrtcGetCUBIN", program, out, true);
}
KSIM_API nvrtcResult nvrtcGetPTXSize(Program* program, size_t* bytes) {
    return image_size("nvrtcGetPTXSize", program, bytes, false);
}
KSIM_API nvrtcResult nvrtcGetPTX(Program* program, char* out) {
    return image_bytes("nvrtcGetPTX", program, out, false);
}

KSIM_API nvrtcResult nvrtcGetProgramLogSize(Program* program, size_t* bytes) {
    if (nvrtcResult code = enter("nvrtcGetProgramLogSize", program, true)) return code;
    if (!bytes) return NVRTC_ERROR_INVALID_INPUT;
    *bytes = program->log.size() + 1;
    return NVRTC_SUCCESS;
}

KSIM_API nvrtcResult nvrtcGetProgramLog(Program* program, char* out) {
    if (nvrtcResult code = enter("nvrtcGetProgramLog", program, true)) return code;
    if (!out) return NVRTC_ERROR_INVALID_INPUT;
    memcpy(out, program->log.c_str(), program->log.size() + 1);
    return NVRTC_SUCCESS;
}

// The n-th compiler call from now (1: the next) returns `code` without doing its work.
KSIM_API void ksimFailNvrtcAfter(long long n, int code) {
    std::lock_guard<std::recursive_mutex> guard(driver_lock);
    injected.remaining = n;
    injected.code = static_cast<nvrtcResult>(code);
}

// ---------------------------------------------------------------- not simulated

#define REFUSED(name) \
    KSIM_API nvrtcResult name() { return NVRTC_ERROR_INVALID_INPUT; }
REFUSED(nvrtcAddNameExpression)
REFUSED(nvrtcGetLoweredName)
REFUSED(nvrtcGetLTOIR)
REFUSED(nvrtcGetLTOIRSize)
REFUSED(nvrtcGetOptiXIR)
REFUSED(nvrtcGetOptiXIRSize)
REFUSED(nvrtcGetTileIR)
REFUSED(nvrtcGetTileIRSize)
REFUSED(nvrtcGetBundledHeadersInfo)
REFUSED(nvrtcInstallBundledHeaders)
REFUSED(nvrtcRemoveBundledHeaders)
