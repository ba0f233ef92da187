// The C interface by which tests steer and observe the software GPU.
#pragma once
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
// Sets an option; returns 0, or -1 for an unknown name or value. The same options are read from the environment at start
// as SOFTMETAL_<NAME IN CAPITALS>. README.md lists them.
int32_t softmetal_set(const char* name, const char* value);
// A counter by name since the last reset, or -1 for an unknown name. README.md lists them.
int64_t softmetal_counter(const char* name);
void softmetal_reset_counters(void);
// The command buffer that is the `nth` to be committed from now on (1: the next) ends with status error and this code of
// MTLCommandBufferError, after half of its dispatches; so do the `count - 1` that follow it.
void softmetal_inject_error(uint32_t nth, uint32_t code, uint32_t count);
// Objects of a class (its Objective-C name) that are alive, or -1 for an unknown class.
int64_t softmetal_live_objects(const char* class_name);
// Uses of the API that Metal's debug layer would stop: their number since the last reset, and the text of the
// first one.
int64_t softmetal_misuses(void);
size_t softmetal_first_misuse(char* text, size_t capacity);
#ifdef __cplusplus
}
#endif
