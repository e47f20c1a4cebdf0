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
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/script.h>
#include <torch/version.h>

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

enum Kind : int32_t { TENSOR, TENSORS_BY_NAME, TEXTS, NUMBER, UNKNOWN };

struct Text {
  const char* data;
  size_t length;
};

struct Input {
  int32_t type;
  size_t rank;
  const int64_t* dims;
  void* data;
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
};

struct Model {
  torch::jit::Module module;
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

torch::Tensor tensor_of(const Input& input) {
  TORCH_CHECK(
      input.type >= 0 && input.type < static_cast<int32_t>(c10::ScalarType::NumOptions),
      "this release of libtorch lacks the type of an input");
  auto options = torch::TensorOptions().dtype(static_cast<c10::ScalarType>(input.type));
  return torch::from_blob(input.data, c10::IntArrayRef(input.dims, input.rank), options);
}

c10::IValue value_of(const Input& input, const c10::TypePtr& given) {
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
  auto tensor = tensor_of(input);
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
// Up to `runners` threads run the package at once. Older releases support only one.
template <typename P = Package>
std::unique_ptr<P> open_package(const std::string& path, size_t runners) {
  if constexpr (std::is_constructible_v<P, std::string, std::string, bool, size_t>) {
    return std::make_unique<P>(path, "model", false, runners);
  } else {
    return std::make_unique<P>(path);
  }
}

void run_package(
    Package& package, const Options& options, const Input* inputs, size_t input_count, void* context,
    OnOutput on_output) {
  std::vector<at::Tensor> tensors;
  for (size_t at = 0; at < input_count; ++at) {
    tensors.push_back(tensor_of(inputs[at]));
  }
  auto results = without_gradients(options.inference_mode != 0, [&] { return package.run(tensors); });
  for (size_t at = 0; at < results.size(); ++at) {
    send(at, nullptr, results[at], context, on_output);
  }
}
#endif

}  // namespace

extern "C" {

__attribute__((visibility("default"))) const char* nereid_torch_version() { return TORCH_VERSION; }

__attribute__((visibility("default"))) void nereid_torch_free_text(char* text) { std::free(text); }

__attribute__((visibility("default"))) char* nereid_torch_load(const char* path, Model** model) {
  return guarded([&] {
    auto module = torch::jit::load(path, c10::Device(c10::kCPU));
    module.eval();
    *model = new Model{std::move(module), nullptr};
  });
}

// Loads a package of AOTInductor, for up to `runners` threads at once.
__attribute__((visibility("default"))) char* nereid_torch_load_package(
    const char* path, size_t runners, Model** model) {
  return guarded([&] {
#if HAS_PACKAGES
    *model = new Model{torch::jit::Module(), open_package(path, runners)};
#else
    TORCH_CHECK(false, "packages of AOTInductor need libtorch 2.6 or newer");
#endif
  });
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
  char* error = guarded([&] { delete model; });
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

// Runs `forward`, or a package. `inputs` are the arguments in order, or the entries of the dictionary.
__attribute__((visibility("default"))) char* nereid_torch_run(
    Model* model, const Options* options, const Input* inputs, size_t input_count, int32_t by_name, void* context,
    OnOutput on_output) {
  return guarded([&] {
    if (options->threads > 0 && at::get_num_threads() != options->threads) {
      at::set_num_threads(options->threads);
    }
#if HAS_PACKAGES
    if (model->package != nullptr) {
      run_package(*model->package, *options, inputs, input_count, context, on_output);
      return;
    }
#endif
    torch::jit::setGraphExecutorOptimize(options->optimized_execution != 0);
    std::vector<c10::IValue> arguments;
    if (by_name != 0) {
      c10::Dict<std::string, torch::Tensor> tensors;
      for (size_t at = 0; at < input_count; ++at) {
        tensors.insert(inputs[at].name, tensor_of(inputs[at]));
      }
      arguments.emplace_back(tensors);
    } else {
      auto schema = model->module.get_method("forward").function().getSchema();
      for (size_t at = 0; at < input_count; ++at) {
        const auto& argument = schema.arguments().at(at + 1);
        if (inputs[at].type == ABSENT) {
          arguments.push_back(argument.default_value() ? *argument.default_value() : c10::IValue());
        } else {
          arguments.push_back(value_of(inputs[at], argument.type()));
        }
      }
    }
    auto result = without_gradients(
        options->inference_mode != 0, [&] { return model->module.forward(std::move(arguments)); });
    send_all(result, context, on_output);
  });
}

}  // extern "C"
