// SPDX-License-Identifier: Apache-2.0
// torchtpu_core._C: what the Python side may ask of the device.
#include "allocator.h"
#include "autograd_threads.h"
#include "copies.h"
#include "deferred.h"
#include "device.h"
#include "generator.h"
#include "hooks.h"
#include "known_numbers.h"
#include "memory_of.h"
#include "op_info.h"
#include "recomputation.h"
#include "recorder.h"
#include "restless.h"
#include "trace.h"
#include "trace_key.h"

#include <torch/csrc/utils/pybind.h>

namespace torchtpu {
namespace {

// The GIL is held.
void flush_all(FlushReason reason) {
  py::gil_scoped_release release;
  for (c10::DeviceIndex device = 0; is_started() && device < device_count(); ++device) {
    flush_device(device, reason);
  }
}

py::dict flush_counts() {
  py::dict counts;
  for (size_t i = 0; i < static_cast<size_t>(FlushReason::kCount); ++i) {
    counts[name_of(static_cast<FlushReason>(i))] = flush_counters().by_reason[i].load();
  }
  return counts;
}

py::list flush_records() {
  py::list records;
  for (const FlushRecord& record : last_flushes()) {
    py::dict fields;
    fields["reason"] = name_of(record.reason);
    fields["outcome"] = name_of(record.outcome);
    fields["device"] = static_cast<int>(record.device);
    fields["ops"] = record.ops;
    fields["compile_requested"] = record.compile_requested;
    fields["line"] = record.line.describe();
    records.append(fields);
  }
  return records;
}

void bind_fusion(py::module_& m) {
  m.def("set_fusion_policy", [](bool background, int sightings, int at_first_sight,
                                int patience, int64_t max_ops, int64_t max_held_bytes) {
    FusionPolicy& policy = fusion_policy();
    policy.background = background;
    policy.sightings = sightings;
    policy.at_first_sight = at_first_sight;
    policy.patience = patience;
    policy.max_ops = max_ops;
    policy.max_held_bytes = max_held_bytes;
  }, py::arg("background"), py::arg("sightings"), py::arg("at_first_sight"), py::arg("patience"),
        py::arg("max_ops"), py::arg("max_held_bytes"));
  m.def("optimizer_stepped", [] { flush_all(FlushReason::kOptimizerStep); });
  m.def("flush", [] { flush_all(FlushReason::kUser); });
  m.def("log_flushes", &log_flushes);
  m.def("cut_recomputation", &cut_recomputation,
        "Whether Fused Eager starts a new trace where the backward pass starts to recompute.");
  m.def("flush_counts", &flush_counts);
  m.def("flush_records", &flush_records);
  m.def("forget_streams", [] {
    flush_all(FlushReason::kUser);
    for (c10::DeviceIndex device = 0; device < kMaxDevices; ++device) {
      TraceLock lock(device_trace(device));
      device_trace(device).journal.reset();
    }
    forget_programs_of_lists();
  });
  py::class_<PendingProgram>(m, "PendingProgram", "A program that is being compiled.")
      .def("fulfil", &PendingProgram::fulfil)
      .def("refuse", &PendingProgram::refuse);
}

void bind_ops(py::module_& m) {
  m.def("register_op", [](const std::string& overload, py::object row, const py::dict& options) {
    register_op(make_op_info(overload, std::move(row), options));
  }, "Serve an overload by a row of a lowering table.");
  m.def("set_copy_op", [](py::object row) {
    py::dict options;
    options["structural"] = true;
    set_copy_op(make_op_info("aten::copy_", std::move(row), options));
  }, "The row that copies within a device.");
  m.def("set_mode", [](bool present, bool flush_each, bool synchronous) {
    flush_all(FlushReason::kModeChange);
    mode_policy().present = present;
    mode_policy().flush_each = flush_each;
    mode_policy().synchronous = synchronous;
  }, py::arg("present"), py::arg("flush_each"), py::arg("synchronous"));
  m.def("set_observer", &set_observer);
  // Never deleted: signatures and programs refer to it.
  py::class_<OpInfo, std::unique_ptr<OpInfo, py::nodelete>>(
      m, "Call", "A Python function on arrays, callable on tensors.")
      .def(py::init([](const std::string& name, py::object row, int random, bool alone) {
        static std::atomic<int64_t> next_uid{int64_t{1} << 40};
        auto info = std::make_unique<OpInfo>();
        info->name = name;
        info->row = row.release();
        info->alone = alone;
        info->random = random > 0;
        info->random_draws = static_cast<uint64_t>(random);
        info->structural = true;  // a compiled graph needs no execution mode
        info->prepare = py::none().release();
        info->expanded = py::none().release();
        info->uid = next_uid.fetch_add(1);
        return info.release();
      }), py::arg("name"), py::arg("row"), py::arg("random") = 0, py::arg("alone") = false)
      .def("__call__", &record_call, py::arg("tensors"), py::arg("scalars"), py::arg("written"),
           py::arg("out_specs"))
      .def("bind", [](const OpInfo& op, std::vector<int> operands, std::vector<int> written,
                      py::object out_specs, const std::vector<std::pair<bool, std::optional<int>>>& returns,
                      bool boxed) -> py::object {
        BoundCall bound{&op, std::move(operands), std::move(written), std::move(out_specs), {}};
        for (const auto& [fresh, index] : returns) {
          bound.returns.push_back(!index ? BoundCall::kNothing : fresh ? *index : ~*index);
        }
        if (boxed) {
          return py::cpp_function([bound](py::list arguments) { return bound.call_boxed(std::move(arguments)); });
        }
        return py::cpp_function([bound](const py::args& arguments) { return bound.call(arguments); });
      }, py::arg("operands"), py::arg("written"), py::arg("out_specs"), py::arg("returns"),
         py::arg("boxed"));
}

void bind_device(py::module_& m) {
  m.def("register_backend", [] {
    register_guard();
    register_hooks();
    register_backend_meta();
  }, "Register guard, allocator and hooks; once per process.");
  m.def("ensure_started", &ensure_started, py::call_guard<py::gil_scoped_release>());
  m.def("is_started", &is_started);
  m.def("in_bad_fork", &in_bad_fork);
  m.def("device_count", [] { return static_cast<int>(device_count()); });
  m.def("current_device", [] { return static_cast<int>(current_device()); });
  m.def("exchange_device", [](int device) {
    return static_cast<int>(exchange_device(static_cast<c10::DeviceIndex>(device)));
  });
  m.def("choose_device", [](int device) {
    choose_device(static_cast<c10::DeviceIndex>(device));
  });
  m.def("is_device_chosen", &is_device_chosen);
  m.def("check_device", [](int device) {
    check_device(static_cast<c10::DeviceIndex>(std::clamp(device, -1, kMaxDevices - 1)));
  });
  m.def("synchronize", [](int device) { synchronize(static_cast<c10::DeviceIndex>(device)); },
        py::call_guard<py::gil_scoped_release>());
  m.def("wait_for_autograd", [](double seconds) {
    std::chrono::duration<double> patience(seconds);
    return wait_for_autograd(std::chrono::duration_cast<std::chrono::milliseconds>(patience));
  }, py::arg("seconds"), py::call_guard<py::gil_scoped_release>(),
        "Whether autograd's threads put away their last backward pass in time.");
  m.def("default_generator", [](int device) {
    return default_generator(static_cast<c10::DeviceIndex>(device));
  });
  m.def("device_time_ps", [](int device) { return device_time_ps(static_cast<c10::DeviceIndex>(device)); });
  m.def("add_device_time", [](int device, int64_t duration_ps) {
    add_device_time(static_cast<c10::DeviceIndex>(device), duration_ps);
  });
  m.def("user_line", [] { return current_line_text(); });
}

void bind_memory(py::module_& m) {
  m.def("memory_counters", [](int device) {
    auto& counters = settled_memory_counters(static_cast<c10::DeviceIndex>(device));
    py::dict values;
    values["allocated"] = counters.allocated.load();
    values["peak"] = counters.peak.load();
    values["allocations"] = counters.allocations.load();
    values["frees"] = counters.frees.load();
    values["failures"] = counters.failures.load();
    return values;
  });
  m.def("live_values", [](int device) {
    py::list found;
    for (const ValuePtr& value : live_values(static_cast<c10::DeviceIndex>(device))) {
      found.append(py::make_tuple(value->geometry->nbytes, describe_geometry(value->geometry),
                                  value->line.describe()));
    }
    return found;
  }, "(bytes, (sizes, strides, dtype), user's line) of each value a storage of the device holds.");
  m.def("reset_peak_memory", [](int device) {
    auto& counters = settled_memory_counters(static_cast<c10::DeviceIndex>(device));
    counters.peak.store(counters.allocated.load());
  });
  m.def("set_memory_limit", [](int device, int64_t bytes) {
    set_memory_limit(static_cast<c10::DeviceIndex>(device), bytes);
  });
  m.def("run_counters", [] {
    auto& counters = run_counters();
    py::dict values;
    values["ops"] = counters.ops.load();
    values["runs"] = counters.runs.load();
    values["memory_hits"] = counters.hits.load();
    values["compiles"] = counters.compiles.load();
    values["donated_bytes"] = counters.donated_bytes.load();
    values["fused_ops"] = flush_counters().fused_ops.load();
    values["replayed_ops"] = flush_counters().replayed_ops.load();
    return values;
  });
  m.def("signature_count", &signature_count);
  m.def("clear_programs", &clear_programs);
}

// Who gave the array may still read it, or have made it from memory of its own.
void lend(const at::Tensor& tensor) {
  if (ValuePtr value = slot_of(tensor)->get()) {
    value->lent = true;
  }
}

void bind_values(py::module_& m) {
  m.def("array_of", &array_of, py::arg("tensor"), py::arg("lend") = true,
        "The jax.Array behind a tpu tensor, in the tensor's shape.");
  m.attr("native") = native_table();
  m.def("nonzero_on_host", &nonzero_on_host, py::call_guard<py::gil_scoped_release>(),
        "Where elements are not zero, found by the host; or how many, if that is known.");
  m.def("own_array", &own_array,
        "The array of a tensor's memory if nothing else can see that memory, else None.");
  m.def("assign", [](const at::Tensor& to, py::object array) {
    assign_array(to, std::move(array));
    lend(to);
  },
        "Give a tpu tensor the contents of a jax.Array that nobody else modifies.");
  m.def("tensor_of", [](py::object array, int device, const std::vector<int64_t>& sizes,
                        c10::ScalarType dtype) {
    at::Tensor made = tensor_of(std::move(array), static_cast<c10::DeviceIndex>(device), sizes, dtype);
    lend(made);
    return made;
  }, "A tpu tensor around a jax.Array that nobody else modifies.");
}

}  // namespace
}  // namespace torchtpu

PYBIND11_MODULE(_C, m) {
  m.doc() = "The compiled part of the tpu device.";
  torchtpu::bind_device(m);
  torchtpu::bind_ops(m);
  torchtpu::bind_fusion(m);
  torchtpu::bind_memory(m);
  torchtpu::bind_values(m);
}
