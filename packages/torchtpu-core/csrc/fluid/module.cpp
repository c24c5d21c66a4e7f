// SPDX-License-Identifier: Apache-2.0
// `torchtpu_core._fluid`: the simulation on NumPy arrays; `ici/fluid.py` says what it means.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <functional>

#include "flows.h"

namespace py = pybind11;

namespace torchtpu::fluid {
namespace {

using Ints = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;
using Floats = py::array_t<double, py::array::c_style | py::array::forcecast>;
// Source and latency of each flow; flow and place of each target; flow, link and weight of each
// crossing.
using Arrays = std::tuple<Ints, Ints, Ints, Ints, Ints, Ints, Floats>;

template <typename Array>
auto view(const Array& array) {
  return std::span(array.data(), static_cast<size_t>(array.size()));
}

py::tuple simulate(const Floats& capacity, const std::vector<Arrays>& patterns,
                   const std::vector<std::pair<Number, Floats>>& rounds,
                   const std::vector<std::vector<Number>>& lanes, const Ints& start) {
  Problem problem;
  problem.capacity = view(capacity);
  problem.lanes = lanes;
  problem.start = view(start);
  for (const auto& [pattern, size] : rounds) {
    auto sizes = view(size);
    auto other = std::adjacent_find(sizes.begin(), sizes.end(), std::not_equal_to<>());
    problem.rounds.push_back({pattern, sizes, other == sizes.end()});
  }
  Outcome outcome;
  {
    py::gil_scoped_release release;
    for (const auto& [source, latency, target_flow, target, flow, link, weight] : patterns) {
      Columns columns{view(source), view(latency), view(target_flow), view(target),
                      view(flow),   view(link),    view(weight)};
      problem.patterns.push_back(pattern_of(columns, problem.start.size()));
    }
    outcome = run(problem);
  }
  return py::make_tuple(outcome.lane_end, outcome.events, outcome.shared);
}

}  // namespace
}  // namespace torchtpu::fluid

PYBIND11_MODULE(_fluid, module) {
  module.def("simulate", &torchtpu::fluid::simulate, py::arg("capacity"), py::arg("patterns"),
             py::arg("rounds"), py::arg("lanes"), py::arg("start"));
}
