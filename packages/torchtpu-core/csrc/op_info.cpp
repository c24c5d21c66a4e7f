// SPDX-License-Identifier: Apache-2.0
#include "op_info.h"

#include "lent.h"
#include "native_metas.h"
#include "recorder.h"

#include <torch/library.h>

#include <algorithm>
#include <map>
#include <unordered_set>

namespace torchtpu {
namespace {

const std::unordered_set<std::string>& dropped_names() {
  static const auto* names = new std::unordered_set<std::string>{
      "device", "layout", "pin_memory", "memory_format", "non_blocking"};
  return *names;
}

bool contains(const py::handle& collection, const std::string& name) {
  return py::bool_(collection.attr("__contains__")(name));
}

Sharing sharing_of(const std::string& name) {
  static const auto* kinds = new std::map<std::string, Sharing>{
      {"exact", Sharing::kExact},
      {"itself", Sharing::kItself},
      {"nothing", Sharing::kNothing},
      {"repeats", Sharing::kRepeats}};
  return kinds->at(name);
}

// Never released, as a row.
py::handle option_or_none(const py::dict& options, const char* name) {
  return (options.contains(name) ? py::object(options[name]) : py::none()).release();
}

OpArg make_arg(const c10::Argument& argument, py::handle row, bool out_variant) {
  OpArg arg;
  arg.name = argument.name();
  arg.keyword = argument.kwarg_only();
  std::string type = argument.type()->str();
  arg.number = type == "Scalar" || type == "Scalar?" || type == "number" ||
               type == "Scalar[]" || type == "number[]";
  arg.dtype = argument.real_type()->str().rfind("ScalarType", 0) == 0;
  if (argument.default_value().has_value()) {
    arg.default_value = *argument.default_value();
  }
  if (type == "Generator?" || type == "Generator") {
    arg.role = ArgRole::kGenerator;
  } else if (dropped_names().count(arg.name) != 0) {
    arg.role = ArgRole::kDropped;
  } else if (out_variant && argument.is_out()) {
    arg.role = ArgRole::kOut;
  } else if (contains(row.attr("static"), arg.name)) {
    arg.role = ArgRole::kStatic;
  } else if (contains(row.attr("runtime"), arg.name)) {
    arg.role = ArgRole::kRuntime;
  }
  arg.written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  return arg;
}

class RecorderKernel final : public c10::OperatorKernel {
 public:
  explicit RecorderKernel(std::unique_ptr<OpInfo> info) : info_(std::move(info)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    record_op(*info_, op, stack);
  }

 private:
  std::unique_ptr<OpInfo> info_;
};

torch::Library& library_of(const std::string& ns) {
  static auto* libraries = new std::map<std::string, std::unique_ptr<torch::Library>>();
  auto& library = (*libraries)[ns];
  if (!library) {
    library = std::make_unique<torch::Library>(torch::Library::IMPL, ns, kTpuDispatchKey, __FILE__,
                                               __LINE__);
  }
  return *library;
}

}  // namespace

std::unique_ptr<OpInfo> make_op_info(const std::string& overload, py::object row,
                                     const py::dict& options) {
  static std::atomic<int64_t> next_uid{1};
  auto info = std::make_unique<OpInfo>();
  auto dot = overload.find('.');
  std::string base = overload.substr(0, dot);
  std::string variant = dot == std::string::npos ? "" : overload.substr(dot + 1);
  auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(base.c_str(), variant.c_str());
  info->handle = new c10::OperatorHandle(handle);
  info->name = overload;
  info->native_meta = native_meta(overload);
  info->row = row.release();
  info->uid = next_uid.fetch_add(1);
  info->random = info->row.attr("random").cast<bool>();
  info->structural = options.contains("structural");
  info->unstated = options.contains("unstated");
  info->special = info->row.attr("special").cast<std::vector<double>>();
  info->ranged = options.contains("ranged");
  info->contracts = options.contains("contracts");
  if (options.contains("sharing")) {
    info->sharing = sharing_of(options["sharing"].cast<std::string>());
  }
  if (options.contains("apart")) {
    info->sharing = Sharing::kApart;
  }
  info->uploads = options.contains("uploads");
  info->only_out = options.contains("only_out");
  info->joins = options.contains("joins");
  info->in_parts = base.rfind("aten::_foreach_", 0) == 0 &&
                   handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
  info->prepare = option_or_none(options, "prepare");
  info->expanded = option_or_none(options, "expanded");

  info->number_rules = number_rules(handle.schema(), option_or_none(options, "numbers"));
  const auto& schema = handle.schema();
  if (options.contains("prepare_if")) {
    auto argument = schema.argumentIndexWithName(options["prepare_if"].cast<std::string>());
    info->prepare_if = argument.value();
  }
  auto mutates = info->row.attr("mutates").cast<std::vector<std::string>>();
  auto condition = info->row.attr("mutates_if");
  std::vector<int> by_row;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    OpArg arg = make_arg(schema.arguments()[i], info->row, true);
    int index = static_cast<int>(i);
    bool row_says = std::find(mutates.begin(), mutates.end(), arg.name) != mutates.end();
    if (arg.written && !row_says) {
      info->written.push_back(index);
    } else if (row_says) {
      by_row.push_back(index);
      arg.written = true;
    }
    if (arg.role == ArgRole::kGenerator) {
      info->generator = index;
    }
    if (arg.name == "output_mask" || arg.name == "grad_input_mask") {
      info->output_mask = index;
    }
    if (!condition.is_none() && condition.cast<std::string>() == arg.name) {
      info->mutates_if = index;
    }
    info->args.push_back(std::move(arg));
  }
  info->first_row_mutation = static_cast<int>(info->written.size());
  info->written.insert(info->written.end(), by_row.begin(), by_row.end());
  for (const auto& result : schema.returns()) {
    int alias = -1;
    if (result.alias_info() != nullptr && result.alias_info()->isWrite()) {
      for (size_t i = 0; i < schema.arguments().size(); ++i) {
        const auto* info_of = schema.arguments()[i].alias_info();
        if (info_of != nullptr && *info_of == *result.alias_info()) {
          alias = static_cast<int>(i);
        }
      }
    }
    info->returns_arg.push_back(alias);
  }
  return info;
}

void register_op(std::unique_ptr<OpInfo> info) {
  auto split = info->name.find("::");
  std::string ns = info->name.substr(0, split);
  std::string name = info->name.substr(split + 2);
  if (auto kernel = lending_kernel(info)) {
    library_of(ns).impl(name.c_str(), std::move(*kernel));
    return;
  }
  library_of(ns).impl(
      name.c_str(),
      torch::CppFunction::makeFromBoxedFunctor(std::make_unique<RecorderKernel>(std::move(info))));
}

}  // namespace torchtpu
