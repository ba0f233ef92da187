/*
 * A stand-in for the NVIDIA driver: device memory is host memory, kernels do nothing, and every call is noted. It is strict
 * where the driver would be: calls need a current context on their thread, handles must be alive, and copies must lie in an
 * allocation. The fake_ functions at the end are the tests' side.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int R;
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, INVALID_PTX = 218, INVALID_HANDLE = 400, NOT_FOUND = 500 };

#define CONTEXT ((void *)0xc0ffee)
#define MOST 65536

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static __thread void *current;
static int retained;

struct Allocation { uint64_t begin, size; int live, host; };
static struct Allocation allocations[MOST];
static int allocation_count;

enum { STREAM = 1, EVENT, MODULE, FUNCTION, GRAPH, NODE, EXEC };
struct Object { int kind, live; char name[256]; char head[1024]; struct Object *owner; struct Object *after[64], *early[8]; int after_count, early_count, number, nodes; long time; };

static char calls[1 << 20];  /* name of each call, a line each */
static size_t calls_length;
static char nodes[1 << 20];  /* of the graph that was instantiated last: a line each */
static struct { char name[64]; int after, result; } failures[8];
static long clock_now;
static long live[8];

static R note(const char *name) {
  R result = OK;
  pthread_mutex_lock(&mutex);
  size_t length = strlen(name);
  if (calls_length + length + 2 < sizeof calls) {
    memcpy(calls + calls_length, name, length);
    calls[calls_length + length] = '\n';
    calls_length += length + 1;
    calls[calls_length] = 0;
  }
  for (int i = 0; i < 8; i++) {
    if (failures[i].name[0] == 0 || strcmp(failures[i].name, name) != 0) continue;
    if (failures[i].after-- > 0) continue;
    result = failures[i].result;
    failures[i].name[0] = 0;
  }
  pthread_mutex_unlock(&mutex);
  return result;
}

/* As note, for calls that need a current context. */
static R enter(const char *name) {
  R result = note(name);
  return result != OK ? result : current == CONTEXT && retained > 0 ? OK : INVALID_CONTEXT;
}
#define ENTER(name) do { R entered = enter(name); if (entered != OK) return entered; } while (0)

static struct Object *new_object(int kind) {
  struct Object *object = calloc(1, sizeof *object);
  object->kind = kind;
  object->live = 1;
  __atomic_add_fetch(&live[kind], 1, __ATOMIC_SEQ_CST);
  return object;
}
static int is(void *handle, int kind) { return handle != NULL && ((struct Object *)handle)->kind == kind && ((struct Object *)handle)->live; }
static R drop(void *handle, int kind) {
  if (!is(handle, kind)) return INVALID_HANDLE;
  ((struct Object *)handle)->live = 0; /* kept, so that a second use is seen */
  __atomic_sub_fetch(&live[kind], 1, __ATOMIC_SEQ_CST);
  return OK;
}

static uint64_t allocate(size_t bytes, int host) {
  pthread_mutex_lock(&mutex);
  uint64_t at = (uint64_t)(uintptr_t)aligned_alloc(512, (bytes + 511) / 512 * 512);
  memset((void *)(uintptr_t)at, 0xa5, bytes);
  allocations[allocation_count++] = (struct Allocation){at, bytes, 1, host};
  pthread_mutex_unlock(&mutex);
  return at;
}
static R release(uint64_t at) {
  R result = INVALID_VALUE;
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < allocation_count; i++) {
    if (allocations[i].begin != at || !allocations[i].live) continue;
    allocations[i].live = 0;
    free((void *)(uintptr_t)at);
    result = OK;
    break;
  }
  pthread_mutex_unlock(&mutex);
  return result;
}
static int inside(uint64_t at, size_t bytes) {
  int found = 0;
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < allocation_count && !found; i++) {
    found = allocations[i].live && !allocations[i].host && at >= allocations[i].begin && at + bytes <= allocations[i].begin + allocations[i].size;
  }
  pthread_mutex_unlock(&mutex);
  return found;
}

R cuInit(unsigned flags) { (void)flags; return note("cuInit"); }
R cuDriverGetVersion(int *version) { *version = 13000; return OK; }
R cuGetErrorName(R result, const char **text) { static __thread char name[32]; snprintf(name, sizeof name, "FAKE_ERROR_%d", result); *text = name; return OK; }
R cuGetErrorString(R result, const char **text) { (void)result; *text = "made by a test"; return OK; }
R cuDeviceGetCount(int *count) { *count = 1; return note("cuDeviceGetCount"); }
R cuDeviceGet(int *device, int ordinal) { *device = ordinal; return OK; }
R cuDeviceGetName(char *name, int size, int device) { (void)device; snprintf(name, (size_t)size, "Fake GPU"); return OK; }
R cuDeviceGetAttribute(int *value, int which, int device) {
  (void)device;
  switch (which) {
    case 1: *value = 1024; return OK;
    case 8: *value = 49152; return OK;
    case 97: *value = 232448; return OK;
    case 10: *value = 32; return OK;
    case 16: *value = 100; return OK;
    case 38: *value = 50 << 20; return OK;
    case 75: *value = 9; return OK;
    case 76: *value = 0; return OK;
    default: return INVALID_VALUE;
  }
}
R cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = (size_t)8 << 30; return OK; }
R cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; R r = note("cuDevicePrimaryCtxRetain"); if (r == OK) { *context = CONTEXT; __atomic_add_fetch(&retained, 1, __ATOMIC_SEQ_CST); } return r; }
R cuDevicePrimaryCtxRelease_v2(int device) { (void)device; __atomic_sub_fetch(&retained, 1, __ATOMIC_SEQ_CST); return note("cuDevicePrimaryCtxRelease"); }
R cuCtxSetCurrent(void *context) { R r = note("cuCtxSetCurrent"); if (r == OK) current = context; return r; }
R cuMemGetInfo_v2(size_t *free_bytes, size_t *total) { ENTER("cuMemGetInfo"); *free_bytes = 123; *total = (size_t)8 << 30; return OK; }
R cuStreamCreate(void **stream, unsigned flags) { (void)flags; ENTER("cuStreamCreate"); *stream = new_object(STREAM); return OK; }
R cuStreamDestroy_v2(void *stream) { ENTER("cuStreamDestroy"); return drop(stream, STREAM); }
R cuStreamSynchronize(void *stream) { ENTER("cuStreamSynchronize"); return is(stream, STREAM) ? OK : INVALID_HANDLE; }
R cuEventCreate(void **event, unsigned flags) { (void)flags; ENTER("cuEventCreate"); *event = new_object(EVENT); return OK; }
R cuEventDestroy_v2(void *event) { ENTER("cuEventDestroy"); return drop(event, EVENT); }
R cuEventRecord(void *event, void *stream) { ENTER("cuEventRecord"); if (!is(event, EVENT) || !is(stream, STREAM)) return INVALID_HANDLE; ((struct Object *)event)->time = ++clock_now; return OK; }
R cuEventSynchronize(void *event) { ENTER("cuEventSynchronize"); return is(event, EVENT) && ((struct Object *)event)->time > 0 ? OK : INVALID_HANDLE; }
R cuEventElapsedTime(float *milliseconds, void *from, void *to) {
  ENTER("cuEventElapsedTime");
  if (!is(from, EVENT) || !is(to, EVENT)) return INVALID_HANDLE;
  *milliseconds = (float)(((struct Object *)to)->time - ((struct Object *)from)->time);
  return OK;
}
R cuMemAlloc_v2(uint64_t *address, size_t bytes) { ENTER("cuMemAlloc"); if (bytes > (size_t)8 << 30) return OUT_OF_MEMORY; *address = allocate(bytes, 0); return OK; }
R cuMemFree_v2(uint64_t address) { ENTER("cuMemFree"); return release(address); }
R cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) { (void)flags; ENTER("cuMemHostAlloc"); *memory = (void *)(uintptr_t)allocate(bytes, 1); return OK; }
R cuMemFreeHost(void *memory) { ENTER("cuMemFreeHost"); return release((uint64_t)(uintptr_t)memory); }
R cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) { ENTER("cuMemcpyHtoDAsync"); if (!is(stream, STREAM) || !inside(to, bytes)) return INVALID_VALUE; memcpy((void *)(uintptr_t)to, from, bytes); return OK; }
R cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) { ENTER("cuMemcpyDtoHAsync"); if (!is(stream, STREAM) || !inside(from, bytes)) return INVALID_VALUE; memcpy(to, (void *)(uintptr_t)from, bytes); return OK; }
R cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) { ENTER("cuMemcpyDtoDAsync"); if (!is(stream, STREAM) || !inside(to, bytes) || !inside(from, bytes)) return INVALID_VALUE; memmove((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes); return OK; }
R cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *stream) { ENTER("cuMemsetD8Async"); if (!is(stream, STREAM) || !inside(to, bytes)) return INVALID_VALUE; memset((void *)(uintptr_t)to, value, bytes); return OK; }

R cuModuleLoadDataEx(void **module, const void *image, unsigned count, int *options, void **values) {
  R entered = enter("cuModuleLoadDataEx");
  if (entered == INVALID_PTX) {
    for (unsigned i = 0; i < count; i++) {
      if (options[i] == 5) strcpy(values[i], "ptxas application ptx input, line 7; error: planted");
    }
  }
  if (entered != OK) return entered;
  struct Object *object = new_object(MODULE);
  const char *text = image, *end = strchr(text, '\n');
  snprintf(object->head, sizeof object->head, "%.*s", (int)(end - text), text);
  if (strstr(text, ".entry") == NULL) return INVALID_PTX;
  *module = object;
  return OK;
}
R cuModuleUnload(void *module) { ENTER("cuModuleUnload"); return drop(module, MODULE); }
R cuModuleGetFunction(void **function, void *module, const char *name) {
  ENTER("cuModuleGetFunction");
  if (!is(module, MODULE)) return INVALID_HANDLE;
  struct Object *object = new_object(FUNCTION);
  object->owner = module;
  snprintf(object->name, sizeof object->name, "%s", name);
  *function = object;
  return strstr(object->owner->head, name) != NULL ? OK : NOT_FOUND;
}
R cuFuncSetAttribute(void *function, int which, int value) { ENTER("cuFuncSetAttribute"); if (!is(function, FUNCTION)) return INVALID_HANDLE; return which == 8 && value > 0 && value <= 232448 ? OK : INVALID_VALUE; }
R cuFuncGetAttribute(int *value, int which, void *function) { ENTER("cuFuncGetAttribute"); if (!is(function, FUNCTION)) return INVALID_HANDLE; *value = which == 0 ? 1024 : 0; return OK; }

R cuGraphCreate(void **graph, unsigned flags) { (void)flags; ENTER("cuGraphCreate"); *graph = new_object(GRAPH); return OK; }
R cuGraphDestroy(void *graph) { ENTER("cuGraphDestroy"); return drop(graph, GRAPH); }

static struct Object *graph_nodes[8192];
static int graph_node_count;
static R add_node(void **node, void *graph, void *const *after, size_t count, const char *what, const char *detail, struct Object *owner) {
  if (!is(graph, GRAPH) || count > 64) return INVALID_VALUE;
  struct Object *object = new_object(NODE);
  if (((struct Object *)graph)->nodes == 0) graph_node_count = 0;
  object->number = ((struct Object *)graph)->nodes++;
  object->owner = owner;
  snprintf(object->name, sizeof object->name, "%s", what);
  snprintf(object->head, sizeof object->head, "%s", detail);
  for (size_t i = 0; i < count; i++) {
    if (!is(after[i], NODE)) return INVALID_HANDLE;
    object->after[object->after_count++] = after[i];
  }
  graph_nodes[graph_node_count++] = object;
  *node = object;
  return OK;
}
struct KernelNode { void *function; unsigned groups[3], threads[3], shared; void **arguments, **extra; };
R cuGraphAddKernelNode(void **node, void *graph, void *const *after, size_t count, const struct KernelNode *k) {
  ENTER("cuGraphAddKernelNode");
  if (!is(k->function, FUNCTION) || !is(((struct Object *)k->function)->owner, MODULE)) return INVALID_HANDLE;
  /* As the driver does, the arguments are copied now: a wrong pointer is found by a memory checker. */
  char detail[1024];
  int length = snprintf(detail, sizeof detail, "%u,%u,%u %u,%u,%u %u", k->groups[0], k->groups[1], k->groups[2], k->threads[0], k->threads[1], k->threads[2], k->shared);
  const char *at = strstr(((struct Object *)k->function)->owner->head, "arguments");
  unsigned slot, bytes, i = 0, sum = 0;
  int used;
  char kind;
  for (at += strlen("arguments"); sscanf(at, " %c%u:%u%n", &kind, &slot, &bytes, &used) == 3; at += used, i++) {
    const unsigned char *value = k->arguments[i];
    if (kind == 'b') {
      uint64_t address;
      memcpy(&address, value, 8);
      if (!inside(address, 1)) return INVALID_VALUE;
    }
    for (unsigned b = 0; b < bytes; b++) sum = sum * 31 + value[b];
  }
  snprintf(detail + length, sizeof detail - (size_t)length, " arguments %u hash %u", i, sum);
  return add_node(node, graph, after, count, ((struct Object *)k->function)->name, detail, NULL);
}
struct EdgeData { unsigned char from_port, to_port, type, reserved[5]; };
R cuGraphAddDependencies_v2(void *graph, void *const *from, void *const *to, const struct EdgeData *edges, size_t count) {
  ENTER("cuGraphAddDependencies");
  if (!is(graph, GRAPH) || count != 1 || !is(from[0], NODE) || !is(to[0], NODE)) return INVALID_HANDLE;
  /* Early edges lie between kernels alone. */
  struct Object *before = from[0], *node = to[0];
  if (edges[0].from_port != 1 || edges[0].to_port != 0 || edges[0].type != 1 || before->owner != NULL || node->owner != NULL) return INVALID_VALUE;
  node->early[node->early_count++] = before;
  return OK;
}
R cuGraphAddEventRecordNode(void **node, void *graph, void *const *after, size_t count, void *event) {
  ENTER("cuGraphAddEventRecordNode");
  if (!is(event, EVENT)) return INVALID_HANDLE;
  return add_node(node, graph, after, count, "event", "", event);
}
R cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) {
  (void)flags;
  ENTER("cuGraphInstantiate");
  if (!is(graph, GRAPH)) return INVALID_HANDLE;
  struct Object *object = new_object(EXEC);
  object->owner = graph;
  object->nodes = ((struct Object *)graph)->nodes;
  size_t length = 0;
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < graph_node_count; i++) {
    length += (size_t)snprintf(nodes + length, sizeof nodes - length, "%d %s %s after", i, graph_nodes[i]->name, graph_nodes[i]->head);
    for (int a = 0; a < graph_nodes[i]->after_count; a++) length += (size_t)snprintf(nodes + length, sizeof nodes - length, " %d", graph_nodes[i]->after[a]->number);
    for (int a = 0; a < graph_nodes[i]->early_count; a++) length += (size_t)snprintf(nodes + length, sizeof nodes - length, " early:%d", graph_nodes[i]->early[a]->number);
    length += (size_t)snprintf(nodes + length, sizeof nodes - length, "\n");
  }
  pthread_mutex_unlock(&mutex);
  *exec = object;
  return OK;
}
R cuGraphExecDestroy(void *exec) { ENTER("cuGraphExecDestroy"); return drop(exec, EXEC); }
R cuGraphLaunch(void *exec, void *stream) {
  ENTER("cuGraphLaunch");
  if (!is(exec, EXEC) || !is(stream, STREAM)) return INVALID_HANDLE;
  /* Only the last graph's nodes are known; its events get the times at which they would be reached. */
  for (int i = 0; i < graph_node_count; i++) {
    struct Object *event = graph_nodes[i]->owner;
    if (event != NULL && event->live) event->time = ++clock_now;
    else clock_now++;
  }
  return OK;
}

/* ---- the tests' side */

void fake_reset(void) { pthread_mutex_lock(&mutex); calls_length = 0; calls[0] = 0; nodes[0] = 0; memset(failures, 0, sizeof failures); pthread_mutex_unlock(&mutex); }
/* Times that a function was called since the reset. */
long fake_count(const char *name) {
  long count = 0;
  size_t length = strlen(name);
  pthread_mutex_lock(&mutex);
  for (const char *at = calls; *at; at = strchr(at, '\n') + 1) count += strncmp(at, name, length) == 0 && at[length] == '\n';
  pthread_mutex_unlock(&mutex);
  return count;
}
/* The `after`-th next call of a function gives this result, once. */
void fake_fail(const char *name, int after, int result) {
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < 8; i++) {
    if (failures[i].name[0] != 0) continue;
    snprintf(failures[i].name, sizeof failures[i].name, "%s", name);
    failures[i].after = after;
    failures[i].result = result;
    break;
  }
  pthread_mutex_unlock(&mutex);
}
/* The nodes of the graph instantiated last, "NUMBER NAME GROUPS THREADS SHARED arguments N hash H after NUMBERS" each. */
void fake_nodes(char *text, size_t size) { snprintf(text, size, "%s", nodes); }
/* Live objects: 1 streams, 2 events, 3 modules, 5 graphs, 7 instantiated graphs; 0: allocations; 8: retained contexts. */
long fake_live(int kind) {
  if (kind == 8) return retained;
  if (kind > 0) return live[kind];
  long count = 0;
  for (int i = 0; i < allocation_count; i++) count += allocations[i].live;
  return count;
}
