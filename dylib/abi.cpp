#include "device.h"
extern "C" {
MB_EXPORT uint32_t mb_abi_version(void) { return MB_ABI_VERSION; }
}
