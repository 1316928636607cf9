/* A CUDA driver without a GPU: memory is the host's, kernels do nothing, and copies nothing either after empty_driver_rests(1).
   overhead.py compiles it, to see what a call takes beside what a GPU does. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef uint64_t Handle;
enum { HOST = 1, DEVICE = 2, ARENA_NBYTES = 1 << 30, MOST_BLOCKS = 4096, UNKNOWN = 1 };

static char *arena;
static size_t used;
static struct { Handle first; size_t nbytes; unsigned kind; } blocks[MOST_BLOCKS];
static int nblocks, rests;
static Handle handles = 0x1000;
static __thread Handle current;

static int block_of(Handle address) {
    for (int i = nblocks - 1; i >= 0; i--)
        if (address - blocks[i].first < blocks[i].nbytes) return i;
    return -1;
}

static void note(Handle first, size_t nbytes, unsigned kind) {
    blocks[nblocks].first = first;
    blocks[nblocks].nbytes = nbytes;
    blocks[nblocks++].kind = kind;
}

static int new_handle(Handle *made) { *made = handles += 16; return 0; }

void empty_driver_rests(int rest) { rests = rest; }

int cuInit(unsigned flags) {
    if (!arena) arena = mmap(0, ARENA_NBYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return arena == MAP_FAILED;
}
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuGetErrorName(int code, const char **text) { *text = "an error of the empty driver"; return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *text, int n, int device) { strncpy(text, "empty", n); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 16 ? 132 : attribute == 75 ? 9 : attribute == 76 ? 0 : 1;
    return 0;
}
int cuDeviceTotalMem_v2(size_t *nbytes, int device) { *nbytes = ARENA_NBYTES; return 0; }
int cuDeviceGetPCIBusId(char *text, int n, int device) { strncpy(text, "0000:01:00.0", n); return 0; }
int cuDevicePrimaryCtxRetain(Handle *context, int device) { *context = 0xc0; return 0; }
int cuCtxSetCurrent(Handle context) { current = context; return 0; }
int cuCtxGetCurrent(Handle *context) { *context = current; return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuCtxGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return 0; }

int cuMemAlloc_v2(Handle *address, size_t nbytes) {
    nbytes = (nbytes + 511) & ~(size_t)511;
    if (used + nbytes > ARENA_NBYTES || nblocks == MOST_BLOCKS) return 2;
    note(*address = (Handle)arena + used, nbytes, DEVICE);
    used += nbytes;
    return 0;
}
int cuMemFree_v2(Handle address) { return 0; }
int cuMemHostAlloc(Handle *address, size_t nbytes, unsigned flags) {
    if (nblocks == MOST_BLOCKS || posix_memalign((void **)address, 4096, nbytes)) return 2;
    note(*address, nbytes, HOST);
    return 0;
}
int cuMemFreeHost(Handle address) { free((void *)address); return 0; }
int cuMemHostRegister_v2(Handle address, size_t nbytes, unsigned flags) { return 0; }
int cuMemHostUnregister(Handle address) { return 0; }
int cuMemHostGetDevicePointer_v2(Handle *there, Handle address, unsigned flags) { *there = address; return 0; }
int cuMemGetAddressRange_v2(Handle *first, size_t *nbytes, Handle address) {
    int i = block_of(address);
    if (i < 0) return UNKNOWN;
    *first = blocks[i].first;
    *nbytes = blocks[i].nbytes;
    return 0;
}
int cuPointerGetAttribute(void *value, int attribute, Handle address) {
    int i = block_of(address);
    if (i < 0) return UNKNOWN;
    if (attribute == 7 || attribute == 17) *(Handle *)value = attribute == 7 ? i + 1 : 0;
    else *(unsigned *)value = attribute == 2 ? blocks[i].kind : attribute == 10;  /* can be exported */
    return 0;
}
int cuMemcpyAsync(Handle to, Handle from, size_t nbytes, Handle stream) {
    if (!rests) memcpy((void *)to, (void *)from, nbytes);
    return 0;
}
int cuMemsetD8Async(Handle to, unsigned char value, size_t nbytes, Handle stream) { memset((void *)to, value, nbytes); return 0; }

int cuStreamCreate(Handle *stream, unsigned flags) { return new_handle(stream); }
int cuStreamCreateWithPriority(Handle *stream, unsigned flags, int priority) { return new_handle(stream); }
int cuStreamDestroy_v2(Handle stream) { return 0; }
int cuStreamSynchronize(Handle stream) { return 0; }
int cuStreamWaitEvent(Handle stream, Handle event, unsigned flags) { return 0; }
int cuStreamIsCapturing(Handle stream, int *status) { *status = 0; return 0; }
int cuStreamQuery(Handle stream) { return 0; }
int cuEventCreate(Handle *event, unsigned flags) { return new_handle(event); }
int cuEventDestroy_v2(Handle event) { return 0; }
int cuEventRecord(Handle event, Handle stream) { return 0; }
int cuEventQuery(Handle event) { return 0; }
int cuEventSynchronize(Handle event) { return 0; }
int cuModuleLoadData(Handle *module, const char *text) { return new_handle(module); }
int cuModuleGetFunction(Handle *function, Handle module, const char *name) { return new_handle(function); }
int cuLaunchKernel(Handle function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   Handle stream, void **parameters, void **extra) { return 0; }

typedef struct { char bytes[64]; } Name;
/* what other processes open is memory of their own: nothing looks at it */
int cuIpcGetMemHandle(Name *name, Handle address) { memcpy(name, &address, sizeof address); return 0; }
int cuIpcOpenMemHandle_v2(Handle *address, Name name, unsigned flags) { return cuMemAlloc_v2(address, 512); }
int cuIpcCloseMemHandle(Handle address) { return 0; }
