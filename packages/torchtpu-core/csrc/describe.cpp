// SPDX-License-Identifier: Apache-2.0
// A trace as Python objects, for torchtpu_core.runtime.programs. Runs on a miss only.
#include "trace_key.h"

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <unordered_map>

namespace torchtpu {
namespace {

py::tuple to_tuple(c10::IntArrayRef values) {
  py::tuple tuple(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    tuple[i] = values[i];
  }
  return tuple;
}

py::object dtype_object(c10::ScalarType dtype) { return py::cast(dtype); }

py::object constant(const ArgSpec& spec) {
  if (spec.arg != nullptr && spec.arg->dtype && spec.constant.isInt()) {
    return dtype_object(static_cast<c10::ScalarType>(spec.constant.toInt()));
  }
  return torch::jit::toPyObject(spec.constant);
}

// (name, keyword, kind, payload)
py::tuple describe_arg(const ArgSpec& spec) {
  py::object payload;
  const char* kind = "constant";
  switch (spec.kind) {
    case ArgSpec::kConstant:
      payload = constant(spec);
      break;
    case ArgSpec::kTensor:
      kind = "tensor";
      payload = py::int_(spec.index[0]);
      break;
    case ArgSpec::kTensorList:
      kind = "tensors";
      payload = py::cast(spec.index);
      break;
    case ArgSpec::kScalar:
      kind = "scalar";
      payload = py::make_tuple(
          spec.index[0], spec.scalar_kinds,
          spec.scalar_dtype < 0 ? py::none()
                                : dtype_object(static_cast<c10::ScalarType>(spec.scalar_dtype)));
      break;
    case ArgSpec::kScalarList:
      kind = "scalars";
      payload = py::make_tuple(spec.index, spec.scalar_kinds);
      break;
    case ArgSpec::kAbsent:
      break;
  }
  return py::make_tuple(spec.arg->name, spec.arg->keyword, kind, payload);
}

// (kind, radix, extents, order, number of starts, which of them are known to be 0)
py::object describe_plan(const Plan& plan) {
  static const char* kinds[] = {"identity", "unset", "slice", "gather"};
  static const Box none;
  const Box& box = plan.box ? *plan.box : none;
  py::tuple front(box.radix.size());
  for (size_t i = 0; i < box.radix.size(); ++i) {
    front[i] = box.known_at_front(i);
  }
  return py::make_tuple(kinds[static_cast<int>(plan.kind)], to_tuple(box.radix),
                        to_tuple(box.extents), to_tuple(box.order), box.starts.size(), front);
}

// (sizes, strides, dtype)
py::tuple describe_spec(const TensorSpec& spec) {
  return py::make_tuple(to_tuple(spec.sizes), to_tuple(spec.strides), dtype_object(spec.dtype));
}

using OperandIndex = std::unordered_map<const Value*, size_t>;

// ("operand", k) or ("node", node, output) or None
py::object describe_source(const Trace& trace, const OperandIndex& operands, const NodeInput& input) {
  if (!input.value) {
    return py::none();
  }
  if (input.value->trace.load() == &trace) {
    return py::make_tuple("node", input.value->node, input.value->output);
  }
  return py::make_tuple("operand", operands.at(input.value.get()));
}

py::list describe_outs(const Signature& signature) {
  py::list outs;
  for (const OutSpec& out : signature.outs) {
    static const char* kinds[] = {"tensor", "list", "undefined", "constant"};
    py::list specs;
    for (const TensorSpec& spec : out.tensors) {
      specs.append(describe_spec(spec));
    }
    outs.append(py::make_tuple(kinds[out.kind], specs));
  }
  return outs;
}

// Fresh results, then written arguments: the order of a node's outputs.
std::vector<const TensorSpec*> result_specs(const Signature& signature) {
  std::vector<const TensorSpec*> specs;
  for (const OutSpec& out : signature.outs) {
    for (const TensorSpec& spec : out.tensors) {
      specs.push_back(&spec);
    }
  }
  for (const TensorSpec& spec : signature.written) {
    specs.push_back(&spec);
  }
  return specs;
}

py::dict describe_node(const Trace& trace, const OperandIndex& operands, const Node& node) {
  const Signature& signature = *node.signature;
  py::list args;
  for (const ArgSpec& spec : signature.args) {
    if (spec.kind != ArgSpec::kAbsent) {
      args.append(describe_arg(spec));
    }
  }
  py::list inputs;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const NodeInput& input = node.inputs[i];
    py::object view = i < signature.inputs.size() ? py::object(describe_spec(signature.inputs[i]))
                                                  : py::object(py::none());
    inputs.append(py::make_tuple(
        describe_source(trace, operands, input),
        input.value ? py::object(describe_geometry(input.value->geometry)) : py::object(py::none()),
        view, describe_plan(input.plan)));
  }
  py::list outputs;
  const std::vector<const TensorSpec*> results = result_specs(signature);
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    const NodeOutput& output = node.outputs[i];
    outputs.append(py::make_tuple(describe_geometry(output.value->geometry), output.is_update,
                                  output.base, describe_plan(output.plan),
                                  to_tuple(results[i]->sizes)));
  }
  py::list written;
  for (const TensorSpec& spec : signature.written) {
    written.append(describe_spec(spec));
  }
  py::dict described;
  described["row"] = signature.op->row;
  described["name"] = signature.op->name;
  described["random"] = signature.op->random;
  static const char* precisions[] = {"highest", "high", "medium"};
  described["precision"] = signature.op->contracts
                               ? py::object(py::str(precisions[signature.key.back()]))
                               : py::object(py::none());
  described["only_out"] = signature.op->only_out;
  described["args"] = args;
  described["inputs"] = inputs;
  described["scalars"] = node.scalars.size();
  described["outs"] = describe_outs(signature);
  described["written"] = written;
  described["outputs"] = outputs;
  described["line"] = node.line.describe();
  described["site"] = node.site;
  described["recent"] = node.recent;
  if (node.recomputed && trace.nodes.size() > 1) {
    described["recomputed"] = true;
  }
  return described;
}

}  // namespace

py::tuple describe_geometry(const Geometry* geometry) {
  return py::make_tuple(to_tuple(geometry->sizes), to_tuple(geometry->strides),
                        dtype_object(geometry->dtype));
}

py::object describe_trace(const Trace& trace, const TraceLayout& layout) {
  OperandIndex index;
  for (size_t i = 0; i < layout.operands.size(); ++i) {
    index.emplace(layout.operands[i].get(), i);
  }
  py::list nodes;
  for (const Node& node : trace.nodes) {
    nodes.append(describe_node(trace, index, node));
  }
  py::list operands;
  for (const ValuePtr& operand : layout.operands) {
    operands.append(describe_geometry(operand->geometry));
  }
  py::list live;
  for (const NodeOutput* output : layout.live) {
    live.append(py::make_tuple(output->value->node, output->value->output));
  }
  py::list donated;
  for (const auto& [operand, output] : layout.liveness.donated) {
    donated.append(py::make_tuple(operand, output));
  }
  py::dict described;
  described["device"] = static_cast<int>(trace.device);
  described["nodes"] = nodes;
  described["operands"] = operands;
  described["scalar_count"] = layout.scalars.size();
  described["live"] = live;
  described["donated"] = donated;
  return described;
}

}  // namespace torchtpu
