// status.h: from exceptions inside the library to status codes and texts at its border.
#pragma once
#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "device.h"

namespace mb {

// Copies a text into the caller's room, NUL-terminated, cut between characters where it does not fit.
void put_error(char *err, uint64_t err_cap, const std::string &text) noexcept;

// Runs the body of an ABI function: whatever it throws becomes a status and a text.
template <class Body>
int32_t guarded(char *err, uint64_t err_cap, Body &&body) noexcept {
  try {
    try {
      body();
      return MB_OK;
    } catch (const Error &error) {
      put_error(err, err_cap, error.text);
      return error.status;
    } catch (const std::bad_alloc &) {
      put_error(err, err_cap, "The host has no memory left for this call.");
      return MB_OUT_OF_MEMORY;
    } catch (const std::exception &error) {
      put_error(err, err_cap, std::string("Unexpected failure inside the library: ") + error.what());
      return MB_INTERNAL;
    }
  } catch (...) {  // of an unknown type, or out of memory while the text was made
    return MB_INTERNAL;
  }
}

}  // namespace mb
