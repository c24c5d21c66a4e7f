// SPDX-License-Identifier: Apache-2.0
#include "python_frames.h"

#include "bridge.h"

#if PY_VERSION_HEX < 0x030C0000
#include <internal/pycore_frame.h>
#endif

namespace torchtpu {

#if PY_VERSION_HEX < 0x030C0000

UserLine innermost_frame(bool (*wanted)(PyCodeObject*)) {
  PyThreadState* thread = PyGILState_GetThisThreadState();
  _PyInterpreterFrame* frame = thread == nullptr ? nullptr : thread->cframe->current_frame;
  for (; frame != nullptr; frame = frame->previous) {
    if (!_PyFrame_IsIncomplete(frame) && wanted(frame->f_code)) {
      return {frame->f_code, _PyInterpreterFrame_LASTI(frame) * static_cast<int>(sizeof(_Py_CODEUNIT))};
    }
  }
  return {};
}

bool innermost_code_is(bool (*wanted)(PyCodeObject*)) {
  PyThreadState* thread = PyGILState_GetThisThreadState();
  _PyInterpreterFrame* frame = thread == nullptr ? nullptr : thread->cframe->current_frame;
  return frame != nullptr && !_PyFrame_IsIncomplete(frame) && wanted(frame->f_code);
}

#else

UserLine innermost_frame(bool (*wanted)(PyCodeObject*)) {
  py::gil_scoped_acquire gil;
  UserLine line;
  PyThreadState* thread = PyGILState_GetThisThreadState();
  PyFrameObject* frame = thread == nullptr ? nullptr : PyThreadState_GetFrame(thread);
  while (frame != nullptr && line.code == nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    if (wanted(code)) {
      line = {code, PyFrame_GetLasti(frame)};
    }
    Py_DECREF(code);  // the frame keeps it
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  return line;
}

bool innermost_code_is(bool (*wanted)(PyCodeObject*)) {
  py::gil_scoped_acquire gil;
  PyThreadState* thread = PyGILState_GetThisThreadState();
  PyFrameObject* frame = thread == nullptr ? nullptr : PyThreadState_GetFrame(thread);
  if (frame == nullptr) {
    return false;
  }
  PyCodeObject* code = PyFrame_GetCode(frame);
  bool is = wanted(code);
  Py_DECREF(code);
  Py_DECREF(frame);
  return is;
}

#endif

}  // namespace torchtpu
