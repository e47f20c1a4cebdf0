// Calls TorchScript models, and packages of AOTInductor, through C functions. The server compiles it against the headers
// of the libtorch that it found, because libtorch's C++ interface changes with each release. `shim.rs` declares the same
// functions and structures.
//
// Exceptions do not leave the functions: errors are returned as text, which the caller frees with nereid_torch_free_text.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/cuda.h>
#include <torch/script.h>
#include <torch/version.h>

// Empties the cache of the GPUs' memory since 2.9.
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 9)
#include <ATen/DeviceAccelerator.h>
#define EMPTIES_CACHE 1
#else
#define EMPTIES_CACHE 0
#endif

// Since 2.5. Python writes packages since 2.6.
#if __has_include(<torch/csrc/inductor/aoti_package/model_package_loader.h>)
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#define HAS_PACKAGES 1
#else
#define HAS_PACKAGES 0
#endif

namespace {

#if HAS_PACKAGES
using Package = torch::inductor::AOTIModelPackageLoader;
#else
struct Package {};
#endif

constexpr int32_t STRINGS = -1;
constexpr int32_t ABSENT = -2;

// Where a model is loaded, if not on the GPU of that number.
constexpr int32_t ON_CPU = -1;
constexpr int32_t AS_SAVED = -2;

enum Kind : int32_t { TENSOR, TENSORS_BY_NAME, TEXTS, NUMBER, UNKNOWN };

struct Text {
  const char* data;
  size_t length;
};

// Bytes of an input, in memory of the host or of a GPU.
struct Piece {
  const void* data;
  size_t byte_size;
  // The number of the GPU, or ON_CPU.
  int32_t device;
};

struct Input {
  int32_t type;
  size_t rank;
  const int64_t* dims;
  // Elements in memory of the host, unless there are pieces.
  void* data;
  const Piece* pieces;
  size_t piece_count;
  // Whether the only piece may be read where it is.
  int32_t stays;
  const Text* texts;
  size_t text_count;
  const char* name;
};

struct Output {
  size_t index;
  const char* name;
  int32_t type;
  size_t rank;
  const int64_t* dims;
  const void* data;
  size_t byte_size;
  const Text* texts;
  size_t text_count;
};

using OnArgument = void (*)(void*, const char*, int32_t kind, int32_t is_required, int32_t is_written);
using OnOutput = void (*)(void*, const Output*);
using OnText = void (*)(void*, const char*);

struct Options {
  int32_t inference_mode;
  int32_t optimized_execution;
  int32_t threads;
  int32_t empties_cache;
};

struct Model {
  torch::jit::Module module;
  // Where its inputs are.
  c10::Device device;
  // A package compiled by AOTInductor, instead of a module.
  std::unique_ptr<Package> package;
};

char* copy_text(const std::string& text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy != nullptr) {
    std::memcpy(copy, text.c_str(), text.size() + 1);
  }
  return copy;
}

// The message of an exception that `action` throws, if any.
template <typename Action>
char* guarded(Action&& action) {
  try {
    action();
    return nullptr;
  } catch (const c10::Error& error) {
    return copy_text(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return copy_text(error.what());
  } catch (...) {
    return copy_text("an exception of unknown type");
  }
}

c10::TypePtr required_type(const c10::TypePtr& type) {
  if (auto optional = type->cast<c10::OptionalType>()) {
    return optional->getElementType();
  }
  return type;
}

Kind kind_of(const c10::TypePtr& given) {
  auto type = required_type(given);
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return TENSOR;
    case c10::TypeKind::DictType:
      return TENSORS_BY_NAME;
    case c10::TypeKind::StringType:
      return TEXTS;
    case c10::TypeKind::ListType:
      return type->expectRef<c10::ListType>().getElementType()->kind() == c10::TypeKind::StringType ? TEXTS : UNKNOWN;
    case c10::TypeKind::IntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::NumberType:
      return NUMBER;
    default:
      return UNKNOWN;
  }
}

c10::Device device_of(int32_t number) {
  return number < 0 ? c10::Device(c10::kCPU) : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(number));
}

torch::Tensor tensor_of(const Input& input) {
  TORCH_CHECK(
      input.type >= 0 && input.type < static_cast<int32_t>(c10::ScalarType::NumOptions),
      "this release of libtorch lacks the type of an input");
  auto options = torch::TensorOptions().dtype(static_cast<c10::ScalarType>(input.type));
  return torch::from_blob(input.data, c10::IntArrayRef(input.dims, input.rank), options);
}

// The input on the device of the model. Pieces are joined there.
torch::Tensor tensor_on(const Input& input, c10::Device device) {
  if (input.piece_count == 0) {
    return tensor_of(input).to(device);
  }
  auto type = static_cast<c10::ScalarType>(input.type);
  c10::IntArrayRef dims(input.dims, input.rank);
  auto options = torch::TensorOptions().dtype(type).device(device);
  void* first = const_cast<void*>(input.pieces[0].data);
  bool is_aligned = reinterpret_cast<uintptr_t>(first) % c10::elementSize(type) == 0;
  if (input.stays != 0 && is_aligned && device_of(input.pieces[0].device) == device) {
    return torch::from_blob(first, dims, options);
  }
  auto joined = torch::empty(dims, options);
  if (joined.numel() == 0) {
    return joined;
  }
  auto bytes = joined.view({-1}).view(torch::kByte);
  int64_t at = 0;
  for (size_t index = 0; index < input.piece_count; ++index) {
    const Piece& piece = input.pieces[index];
    int64_t size = static_cast<int64_t>(piece.byte_size);
    if (size > 0) {
      auto from = torch::TensorOptions().dtype(torch::kByte).device(device_of(piece.device));
      bytes.narrow(0, at, size).copy_(torch::from_blob(const_cast<void*>(piece.data), {size}, from));
      at += size;
    }
  }
  // Bytes other than 0 and 1 are not valid bools.
  return type == c10::ScalarType::Bool ? bytes.ne(0).view(dims) : joined;
}

c10::IValue value_of(const Input& input, const c10::TypePtr& given, c10::Device device) {
  auto type = required_type(given);
  if (input.type == STRINGS) {
    if (type->kind() == c10::TypeKind::StringType) {
      TORCH_CHECK(input.text_count == 1, "a single string is needed, not ", input.text_count);
      return std::string(input.texts[0].data, input.texts[0].length);
    }
    c10::List<std::string> texts;
    for (size_t at = 0; at < input.text_count; ++at) {
      texts.push_back(std::string(input.texts[at].data, input.texts[at].length));
    }
    return texts;
  }
  bool is_number = kind_of(type) == NUMBER;
  auto tensor = is_number && input.piece_count == 0 ? tensor_of(input) : tensor_on(input, device);
  switch (type->kind()) {
    case c10::TypeKind::IntType:
      return tensor.item().toLong();
    case c10::TypeKind::BoolType:
      return tensor.item().toBool();
    case c10::TypeKind::FloatType:
      return tensor.item().toDouble();
    case c10::TypeKind::NumberType:
      return tensor.item();
    default:
      return tensor;
  }
}

void send(size_t index, const char* name, const c10::IValue& value, void* context, OnOutput on_output) {
  Output output{};
  output.index = index;
  output.name = name;
  if (value.isTensor()) {
    auto tensor = value.toTensor().to(torch::kCPU).contiguous();
    output.type = static_cast<int32_t>(tensor.scalar_type());
    output.rank = static_cast<size_t>(tensor.dim());
    output.dims = tensor.sizes().data();
    output.byte_size = static_cast<size_t>(tensor.nbytes());
    output.data = tensor.data_ptr();
    on_output(context, &output);
    return;
  }
  std::vector<std::string> strings;
  if (value.isString()) {
    strings.push_back(value.toStringRef());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      strings.push_back(element.toStringRef());
    }
  } else if (value.isInt() || value.isDouble() || value.isBool()) {
    send(index, name, torch::scalar_tensor(value.toScalar()), context, on_output);
    return;
  } else {
    TORCH_CHECK(false, "output ", index, " is ", value.tagKind(), ", but only tensors and strings can be answered");
  }
  std::vector<Text> texts;
  for (const auto& string : strings) {
    texts.push_back(Text{string.data(), string.size()});
  }
  int64_t count = static_cast<int64_t>(texts.size());
  output.type = STRINGS;
  output.rank = 1;
  output.dims = &count;
  output.texts = texts.data();
  output.text_count = texts.size();
  on_output(context, &output);
}

bool is_of_tensors(const c10::IValue& value) {
  if (!value.isList()) {
    return false;
  }
  for (const c10::IValue& element : value.toListRef()) {
    if (!element.isTensor()) {
      return false;
    }
  }
  return value.toListRef().size() > 0;
}

void send_all(const c10::IValue& value, void* context, OnOutput on_output) {
  size_t index = 0;
  if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) {
      send(index++, nullptr, element, context, on_output);
    }
  } else if (is_of_tensors(value)) {
    for (const c10::IValue& element : value.toListRef()) {
      send(index++, nullptr, element, context, on_output);
    }
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      std::string name = entry.key().toStringRef();
      send(index++, name.c_str(), entry.value(), context, on_output);
    }
  } else {
    send(0, nullptr, value, context, on_output);
  }
}

// Frees memory of GPUs that libtorch caches for later runs.
void empty_cache() {
#if EMPTIES_CACHE
  at::accelerator::emptyCache();
#endif
}

template <typename Action>
auto without_gradients(bool inference_mode, Action&& action) {
  if (inference_mode) {
    c10::InferenceMode guard(true);
    return action();
  }
  torch::NoGradGuard guard;
  return action();
}

#if HAS_PACKAGES
// Up to `runners` threads run the package at once. Older releases support only one, and the first GPU.
template <typename P = Package>
std::unique_ptr<P> open_package(const std::string& path, size_t runners, int32_t gpu) {
  if constexpr (std::is_constructible_v<P, std::string, std::string, bool, size_t, c10::DeviceIndex>) {
    return std::make_unique<P>(path, "model", false, runners, static_cast<c10::DeviceIndex>(gpu));
  } else if constexpr (std::is_constructible_v<P, std::string, std::string, bool, size_t>) {
    return std::make_unique<P>(path, "model", false, runners);
  } else {
    return std::make_unique<P>(path);
  }
}

// A package runs on the kind of device for which it was compiled.
Model* load_package(const std::string& path, size_t runners, int32_t gpu) {
  std::unique_ptr<Package> package;
  if (gpu >= 0) {
    try {
      package = open_package(path, runners, gpu);
    } catch (const std::exception&) {
      // One for the CPU takes no number. If it has another fault, the next try finds that, too.
    }
  }
  if (package == nullptr) {
    package = open_package(path, runners, -1);
  }
  auto metadata = package->get_metadata();
  auto found = metadata.find("AOTI_DEVICE_KEY");
  bool on_cpu = found == metadata.end() || found->second == "cpu";
  TORCH_CHECK(
      on_cpu || gpu != ON_CPU, "it was compiled for '", found->second,
      "': its instances take instance_group { kind: KIND_GPU }");
  auto device = on_cpu ? c10::Device(c10::kCPU) : device_of(gpu == AS_SAVED ? 0 : gpu);
  return new Model{torch::jit::Module(), device, std::move(package)};
}

void run_package(
    Model& model, const Options& options, const Input* inputs, size_t input_count, void* context,
    OnOutput on_output) {
  std::vector<at::Tensor> tensors;
  for (size_t at = 0; at < input_count; ++at) {
    tensors.push_back(tensor_on(inputs[at], model.device));
  }
  auto results = without_gradients(options.inference_mode != 0, [&] { return model.package->run(tensors); });
  for (size_t at = 0; at < results.size(); ++at) {
    send(at, nullptr, results[at], context, on_output);
  }
}
#endif

void run(
    Model& model, const Options& options, const Input* inputs, size_t input_count, bool by_name, void* context,
    OnOutput on_output) {
#if HAS_PACKAGES
  if (model.package != nullptr) {
    run_package(model, options, inputs, input_count, context, on_output);
    return;
  }
#endif
  torch::jit::setGraphExecutorOptimize(options.optimized_execution != 0);
  std::vector<c10::IValue> arguments;
  if (by_name) {
    c10::Dict<std::string, torch::Tensor> tensors;
    for (size_t at = 0; at < input_count; ++at) {
      tensors.insert(inputs[at].name, tensor_on(inputs[at], model.device));
    }
    arguments.emplace_back(tensors);
  } else {
    auto schema = model.module.get_method("forward").function().getSchema();
    for (size_t at = 0; at < input_count; ++at) {
      const auto& argument = schema.arguments().at(at + 1);
      if (inputs[at].type == ABSENT) {
        arguments.push_back(argument.default_value() ? *argument.default_value() : c10::IValue());
      } else {
        arguments.push_back(value_of(inputs[at], argument.type(), model.device));
      }
    }
  }
  auto result = without_gradients(
      options.inference_mode != 0, [&] { return model.module.forward(std::move(arguments)); });
  send_all(result, context, on_output);
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) const char* nereid_torch_version() { return TORCH_VERSION; }

__attribute__((visibility("default"))) void nereid_torch_free_text(char* text) { std::free(text); }

// The number of GPUs that CUDA finds, once its libraries are loaded.
__attribute__((visibility("default"))) char* nereid_torch_gpu_count(int32_t* count) {
  return guarded([&] { *count = static_cast<int32_t>(torch::cuda::device_count()); });
}

// A stream of a GPU. The work of different streams overlaps.
__attribute__((visibility("default"))) char* nereid_torch_new_stream(int32_t gpu, c10::Stream** stream) {
  return guarded([&] {
    c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    *stream = new c10::Stream(guard.getStreamFromGlobalPool(device_of(gpu), false));
  });
}

__attribute__((visibility("default"))) void nereid_torch_free_stream(c10::Stream* stream) { delete stream; }

// `device` is the number of a GPU, ON_CPU, or AS_SAVED for the devices in the file.
__attribute__((visibility("default"))) char* nereid_torch_load(const char* path, int32_t device, Model** model) {
  return guarded([&] {
    auto module = device == AS_SAVED ? torch::jit::load(path) : torch::jit::load(path, device_of(device));
    module.eval();
    *model = new Model{std::move(module), device_of(device), nullptr};
  });
}

// Loads a package of AOTInductor, for up to `runners` threads at once.
__attribute__((visibility("default"))) char* nereid_torch_load_package(
    const char* path, size_t runners, int32_t device, Model** model) {
  return guarded([&] {
#if HAS_PACKAGES
    *model = load_package(path, runners, device);
#else
    TORCH_CHECK(false, "packages of AOTInductor need libtorch 2.6 or newer");
#endif
  });
}

// Whether the model's inputs are on a GPU.
__attribute__((visibility("default"))) int32_t nereid_torch_is_on_gpu(const Model* model) {
  return model->device.is_cpu() ? 0 : 1;
}

// A package's specification of its inputs, and then of its outputs, as JSON.
__attribute__((visibility("default"))) char* nereid_torch_call_spec(Model* model, void* context, OnText on_text) {
  return guarded([&] {
#if HAS_PACKAGES
    for (const auto& text : model->package->get_call_spec()) {
      on_text(context, text.c_str());
    }
#endif
  });
}

__attribute__((visibility("default"))) void nereid_torch_free(Model* model) {
  bool on_gpu = !model->device.is_cpu();
  char* error = guarded([&] {
    delete model;
    if (on_gpu) {
      empty_cache();
    }
  });
  std::free(error);
}

// Sets the number of threads that run parts of models in parallel. Called once, before the first model runs.
__attribute__((visibility("default"))) char* nereid_torch_set_inter_op_threads(int32_t count) {
  return guarded([&] { at::set_num_interop_threads(count); });
}

// The arguments of the model's `forward`, in its order.
__attribute__((visibility("default"))) char* nereid_torch_arguments(
    Model* model, void* context, OnArgument on_argument) {
  return guarded([&] {
    auto method = model->module.get_method("forward");
    auto graph = method.graph()->copy();
    torch::jit::Inline(*graph);
    torch::jit::AliasDb aliases(graph);
    const auto& arguments = method.function().getSchema().arguments();
    // The first argument is the module itself.
    for (size_t at = 1; at < arguments.size(); ++at) {
      const auto& argument = arguments[at];
      bool is_written = at >= graph->inputs().size() || aliases.hasWriters(graph->inputs()[at]);
      on_argument(
          context, argument.name().c_str(), kind_of(argument.type()), argument.default_value() ? 0 : 1, is_written);
    }
  });
}

// Runs `forward`, or a package. `inputs` are the arguments in order, or the entries of the dictionary. A model on a GPU runs on
// the stream; its outputs are copied from there, which waits for them.
__attribute__((visibility("default"))) char* nereid_torch_run(
    Model* model, const c10::Stream* stream, const Options* options, const Input* inputs, size_t input_count,
    int32_t by_name, void* context, OnOutput on_output) {
  return guarded([&] {
    if (options->threads > 0 && at::get_num_threads() != options->threads) {
      at::set_num_threads(options->threads);
    }
    if (stream == nullptr) {
      run(*model, *options, inputs, input_count, by_name != 0, context, on_output);
      return;
    }
    c10::StreamGuard guard(*stream);
    run(*model, *options, inputs, input_count, by_name != 0, context, on_output);
    if (options->empties_cache != 0) {
      empty_cache();
    }
  });
}

// Whether this release empties the cache of the GPUs' memory.
__attribute__((visibility("default"))) int32_t nereid_torch_empties_cache() { return EMPTIES_CACHE; }

}  // extern "C"
