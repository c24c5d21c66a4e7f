// SPDX-License-Identifier: Apache-2.0
#include "geometry.h"

#include "mixed.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace torchtpu {
namespace {

struct Interner {
  std::mutex mutex;
  std::unordered_multimap<uint64_t, std::unique_ptr<Geometry>> table;
  int64_t next_id = 1;
};

Interner& interner() {
  static auto* the_interner = new Interner();
  return *the_interner;
}

uint64_t hash_words(uint64_t seed, c10::IntArrayRef words) {
  for (int64_t word : words) {
    seed = mixed(seed, static_cast<uint64_t>(word));
  }
  return seed;
}

bool contiguous(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  int64_t expected = 1;
  for (int64_t dim = static_cast<int64_t>(sizes.size()) - 1; dim >= 0; --dim) {
    if (sizes[dim] != 1 && strides[dim] != expected) {
      return false;
    }
    expected *= sizes[dim];
  }
  return true;
}

// View dims that move through storage, outermost first.
Dims moving_dims(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  Dims dims;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] > 1 && strides[dim] > 0) {
      dims.push_back(static_cast<int64_t>(dim));
    }
  }
  std::stable_sort(dims.begin(), dims.end(),
                   [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  return dims;
}

// Fills `box` with the mixed-radix box of the view; false if it is not a box.
bool fill_box(Box& box, int64_t total, c10::IntArrayRef sizes, c10::IntArrayRef strides,
            int64_t offset, const Dims& dims) {
  int64_t outer = 0;  // stride of the radix dim to the left; 0: none yet
  int64_t rest = offset;
  auto add = [&](int64_t stride, int64_t extent, int64_t dim) {
    if (outer != 0 && outer % stride != 0) {
      return false;
    }
    int64_t length = outer == 0 ? (total + stride - 1) / stride : outer / stride;
    int64_t start = rest / stride;
    rest %= stride;
    if (start + extent > length) {
      return false;
    }
    box.radix.push_back(length);
    box.extents.push_back(extent);
    box.starts.push_back(start);
    box.order.push_back(dim);
    outer = stride;
    return true;
  };
  for (int64_t dim : dims) {
    if (!add(strides[dim], sizes[dim], dim)) {
      return false;
    }
  }
  return outer == 1 || add(1, 1, -1);
}

// Cuts radix dims where the value's own dims end, if the view lies within one index of each: a token
// of `[B, T, D]` is read as `[B, 1, D]`. Else the value would be shaped as `[B, T * D]`, which moves
// it on a TPU, and all that is fused with it.
void cut_along(Box& box, const Geometry& base) {
  if (!base.row_major || box.radix.size() >= base.sizes.size()) {
    return;
  }
  Box cut;
  int64_t stride = 1;
  int64_t base_dim = static_cast<int64_t>(base.sizes.size()) - 1;
  int64_t base_stride = 1;  // of `base_dim`
  for (int64_t i = static_cast<int64_t>(box.radix.size()) - 1; i >= 0; --i) {
    int64_t length = box.radix[i], start = box.starts[i], extent = box.extents[i], dim = box.order[i];
    const int64_t end = stride * length;
    auto add = [&](int64_t count, int64_t first, int64_t taken) {
      cut.radix.push_back(count);
      cut.starts.push_back(first);
      cut.extents.push_back(taken);
      cut.order.push_back(dim);
    };
    for (; base_dim >= 0 && base_stride < end; base_stride *= base.sizes[base_dim--]) {
      const int64_t inner = base_stride / stride;
      if (inner > 1 && base_stride % stride == 0 && length % inner == 0 && start % inner + extent <= inner) {
        add(inner, start % inner, extent);
        start /= inner;
        length /= inner;
        extent = 1;
        dim = -1;
        stride = base_stride;
      }
    }
    add(length, start, extent);
    stride = end;
  }
  for (Dims* dims : {&cut.radix, &cut.starts, &cut.extents, &cut.order}) {
    std::reverse(dims->begin(), dims->end());
  }
  box = std::move(cut);
}

}  // namespace

const Geometry* intern_geometry(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                                c10::ScalarType dtype) {
  uint64_t hash = hash_words(hash_words(static_cast<uint64_t>(dtype) + 77, sizes), strides);
  auto& the_interner = interner();
  std::lock_guard<std::mutex> lock(the_interner.mutex);
  auto range = the_interner.table.equal_range(hash);
  for (auto it = range.first; it != range.second; ++it) {
    const Geometry& g = *it->second;
    if (g.dtype == dtype && c10::IntArrayRef(g.sizes) == sizes &&
        c10::IntArrayRef(g.strides) == strides) {
      return &g;
    }
  }
  auto geometry = std::make_unique<Geometry>();
  geometry->sizes.assign(sizes.begin(), sizes.end());
  geometry->strides.assign(strides.begin(), strides.end());
  geometry->dtype = dtype;
  geometry->id = the_interner.next_id++;
  geometry->numel = 1;
  for (int64_t size : sizes) {
    geometry->numel *= size;
  }
  geometry->nbytes = geometry->numel * static_cast<int64_t>(c10::elementSize(dtype));
  geometry->row_major = contiguous(sizes, strides);
  return the_interner.table.emplace(hash, std::move(geometry))->second.get();
}

const Geometry* flat_geometry(int64_t numel, c10::ScalarType dtype) {
  int64_t one = 1;
  return intern_geometry(c10::IntArrayRef(&numel, 1), c10::IntArrayRef(&one, 1), dtype);
}

bool is_dense(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  if (contiguous(sizes, strides)) {
    return true;
  }
  int64_t expected = 1;
  Dims dims;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] != 1) {
      dims.push_back(static_cast<int64_t>(dim));
    }
  }
  std::sort(dims.begin(), dims.end(), [&](int64_t a, int64_t b) { return strides[a] < strides[b]; });
  for (int64_t dim : dims) {
    if (strides[dim] != expected) {
      return false;
    }
    expected *= sizes[dim];
  }
  return true;
}

int64_t Plan::offset() const {
  if (kind != PlanKind::kSlice) {
    return box ? box->starts[0] : 0;
  }
  int64_t offset = 0;
  for (size_t i = 0; i < box->radix.size(); ++i) {
    offset = offset * box->radix[i] + box->starts[i];
  }
  return offset;
}

Plan plan_view(const Geometry* base, c10::IntArrayRef sizes, c10::IntArrayRef strides,
               int64_t offset, c10::ScalarType dtype) {
  Plan plan;
  int64_t numel = 1;
  for (int64_t size : sizes) {
    numel *= size;
  }
  if (base == nullptr || numel == 0) {
    plan.kind = PlanKind::kUnset;
    return plan;
  }
  if (offset == 0 && base->dtype == dtype && c10::IntArrayRef(base->sizes) == sizes &&
      (c10::IntArrayRef(base->strides) == strides || (base->row_major && contiguous(sizes, strides)))) {
    return plan;
  }
  int64_t total = base->nbytes / static_cast<int64_t>(c10::elementSize(dtype));
  plan.kind = PlanKind::kSlice;
  plan.box = std::make_unique<Box>();
  if (fill_box(*plan.box, total, sizes, strides, offset, moving_dims(sizes, strides))) {
    if (base->dtype == dtype) {
      cut_along(*plan.box, *base);
    }
    return plan;
  }
  plan.kind = PlanKind::kGather;
  *plan.box = Box();
  plan.box->starts.push_back(offset);
  return plan;
}

}  // namespace torchtpu
