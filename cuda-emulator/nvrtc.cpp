// The run-time compiler of an emulated GPU: libnvrtc.so with the calls that backend-cuda makes. A program is compiled
// by the C++ compiler of the machine (CXX, or c++), behind cuda.hpp and the runtime headers, which lie beside this
// library. Compiled programs are kept in the folder `programs` there.
#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "image.hpp"

namespace {

// Results of calls (nvrtcResult).
enum Result : int { SUCCESS = 0, INVALID_INPUT = 3, INVALID_PROGRAM = 4, COMPILATION = 6, INTERNAL_ERROR = 11 };

struct Program {
  std::string source, log, image;
  std::vector<std::pair<std::string, std::string>> headers;
};

std::string folder() {
  Dl_info info;
  dladdr((void*)&folder, &info);
  const std::string path = info.dli_fname;
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}
std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
bool write(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  return (bool)file.flush();
}
std::string compiler() {
  const char* name = std::getenv("CXX");
  return name && *name ? name : "c++";
}
// Runs a command; what it prints goes to `out`.
bool run(const std::string& command, std::string& out) {
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (!pipe) return false;
  char part[4096];
  for (std::size_t n; (n = fread(part, 1, sizeof(part), pipe)) > 0;) out.append(part, n);
  const int status = pclose(pipe);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}
// 128 bits of FNV-1a with two offsets.
std::string fingerprint(const std::string& text) {
  unsigned long long a = 0xcbf29ce484222325ull, b = 0x84222325cbf29ce4ull;
  for (unsigned char c : text) a = (a ^ c) * 0x100000001b3ull, b = (b ^ (c + 1)) * 0x10000000233ull;
  char out[40];
  std::snprintf(out, sizeof(out), "%016llx%016llx", a, b);
  return out;
}

// What must stand behind a program: a table for each kernel, and room for its dynamic shared memory. `source` is the
// program behind the preprocessor.
std::string behind(const std::string& source) {
  auto spaces = [&](std::size_t i) {
    while (i < source.size() && std::isspace((unsigned char)source[i])) ++i;
    return i;
  };
  auto word_end = [&](std::size_t i) {
    while (i < source.size() && (std::isalnum((unsigned char)source[i]) || source[i] == '_')) ++i;
    return i;
  };
  std::string out = "\n";
  const std::string global = "__global__", bounds = "__launch_bounds__", dynamic = "extern __shared__";
  for (std::size_t at = 0; (at = source.find(global, at)) != std::string::npos;) {
    std::string threads = "1024";
    at += global.size();
    for (;;) {
      at = spaces(at);
      const std::size_t end = word_end(at);
      if (end == at) return "#error \"a kernel without a name\"\n";
      const std::string word = source.substr(at, end - at);
      at = spaces(end);
      if (word == bounds) {
        const std::size_t open = at + 1;
        int depth = 1;
        std::size_t comma = std::string::npos;
        for (++at; at < source.size() && depth > 0; ++at) {
          depth += source[at] == '(' ? 1 : source[at] == ')' ? -1 : 0;
          if (depth == 1 && source[at] == ',' && comma == std::string::npos) comma = at;
        }
        threads = source.substr(open, (comma == std::string::npos ? at - 1 : comma) - open);
      } else if (at < source.size() && source[at] == '(') {
        out += "EMULATED_KERNEL(" + word + ", (" + threads + "))\n";
        break;
      }
    }
  }
  for (std::size_t at = 0; (at = source.find(dynamic, at)) != std::string::npos; ++at) {
    const std::size_t open = source.find('[', at), begin = at + std::strlen("extern ");
    out += source.substr(begin, open - begin) + "[emulated::MAX_DYNAMIC_BYTES];\n";
  }
  return out;
}

}  // namespace

#define CALL extern "C" __attribute__((visibility("default"))) int

CALL nvrtcVersion(int* major, int* minor) {
  *major = 13, *minor = 0;
  return SUCCESS;
}
CALL nvrtcCreateProgram(Program** program, const char* source, const char*, int count, const char* const* bodies,
                        const char* const* names) {
  *program = new Program{source, "", "", {}};
  for (int i = 0; i < count; ++i) (*program)->headers.emplace_back(names[i], bodies[i]);
  return SUCCESS;
}
CALL nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return SUCCESS;
}
CALL nvrtcCompileProgram(Program* program, int count, const char* const* options) {
  // Shared arrays and loops are not vectorised much by any compiler: the second level costs time and gains little.
  std::string command = compiler() +
                        " -x c++ -std=c++17 -O1 -march=native -shared -fPIC -fvisibility=hidden -fno-strict-aliasing"
                        " -fwrapv -fno-exceptions -fno-rtti -fno-extern-tls-init -fno-math-errno -fno-stack-protector"
                        " -fsanitize=bounds -fsanitize-undefined-trap-on-error -DFMM_EMULATED -w";
  for (int i = 0; i < count; ++i) {
    const std::string option = options[i], define = "--define-macro=";
    if (option.compare(0, define.size(), define) == 0) {
      command += " -D" + quoted(option.substr(define.size()));
    } else if (option == "--fmad=true") {
      command += " -ffp-contract=fast";
    } else if (option == "--fmad=false") {
      command += " -ffp-contract=off";
    } else if (option.find("--gpu-architecture=") != 0 && option.find("--std=") != 0 &&
               option.find("--ptxas-options=") != 0 && option != "--device-as-default-execution-space") {
      program->log = "the emulator does not know the option " + option;
      return INVALID_INPUT;
    }
  }
  static const std::string version = [] {
    std::string text;
    run(compiler() + " --version && grep -m 1 ^flags /proc/cpuinfo", text);
    return text;
  }();
  const std::string here = folder(), shim = read(here + "/cuda.hpp"), runtime = read(here + "/runtime.hpp");
  const std::string text = "#include \"cuda.hpp\"\n#line 1 \"program.cu\"\n" + program->source;
  std::string all = version + command + shim + runtime + text;
  for (const auto& header : program->headers) all += header.first + "\n" + header.second;
  const std::string kept = here + "/programs/" + fingerprint(all);
  program->image = read(kept);
  if (!program->image.empty()) return SUCCESS;

  char room[] = "/tmp/fmm-emulator-XXXXXX";
  if (!mkdtemp(room)) {
    program->log = "no temporary folder";
    return INTERNAL_ERROR;
  }
  const std::string work = room;
  bool good = write(work + "/program.cu", text);
  for (const auto& [name, body] : program->headers) {
    const std::size_t slash = name.rfind('/');
    if (slash != std::string::npos) mkdir((work + "/" + name.substr(0, slash)).c_str(), 0777);
    good = good && write(work + "/" + name, body);
  }
  command += " -I " + quoted(work) + " -I " + quoted(here) + " " + quoted(work + "/program.cu");
  std::string preprocessed;
  good = good && run(command + " -DEMULATED_SEARCH -E -P -o -", preprocessed);
  if (!good) program->log = preprocessed;
  good = good && write(work + "/program.cu", text + behind(preprocessed));
  good = good && run(command + " -o " + quoted(work + "/program.so"), program->log);
  if (good) {
    const std::string object = read(work + "/program.so");
    emulated::ImageHead head = {};
    std::memcpy(head.magic, emulated::IMAGE_MAGIC, sizeof(head.magic));
    head.bytes = object.size();
    program->image = std::string((const char*)&head, sizeof(head)) + object;
    mkdir((here + "/programs").c_str(), 0777);
    const std::string fresh = kept + "." + std::to_string(getpid());
    if (write(fresh, program->image)) rename(fresh.c_str(), kept.c_str());
  }
  std::string ignored;
  run("rm -rf " + quoted(work), ignored);
  return good ? SUCCESS : COMPILATION;
}
CALL nvrtcGetProgramLogSize(Program* program, std::size_t* bytes) {
  *bytes = program->log.size() + 1;
  return SUCCESS;
}
CALL nvrtcGetProgramLog(Program* program, char* log) {
  std::memcpy(log, program->log.c_str(), program->log.size() + 1);
  return SUCCESS;
}
CALL nvrtcGetCUBINSize(Program* program, std::size_t* bytes) {
  *bytes = program->image.size();
  return program->image.empty() ? INVALID_PROGRAM : SUCCESS;
}
CALL nvrtcGetCUBIN(Program* program, char* image) {
  std::memcpy(image, program->image.data(), program->image.size());
  return SUCCESS;
}
extern "C" __attribute__((visibility("default"))) const char* nvrtcGetErrorString(int result) {
  switch (result) {
    case SUCCESS: return "NVRTC_SUCCESS";
    case INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
    case INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
    case COMPILATION: return "NVRTC_ERROR_COMPILATION";
    default: return "NVRTC_ERROR_INTERNAL_ERROR";
  }
}
