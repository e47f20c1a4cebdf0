/* A cache for the tests: a list of entries under a lock. The macro that it is compiled with says what it does wrong. */

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void* Handle;
Handle TRITONSERVER_ErrorNew(int code, const char* message);
Handle TRITONSERVER_BufferAttributesNew(Handle* attributes);
Handle TRITONSERVER_BufferAttributesDelete(Handle attributes);
Handle TRITONSERVER_BufferAttributesSetByteSize(Handle attributes, size_t size);
Handle TRITONSERVER_BufferAttributesByteSize(Handle attributes, size_t* size);
Handle TRITONCACHE_ApiVersion(uint32_t* major, uint32_t* minor);
Handle TRITONCACHE_CacheEntryBufferCount(Handle entry, size_t* count);
Handle TRITONCACHE_CacheEntryAddBuffer(Handle entry, void* base, Handle attributes);
Handle TRITONCACHE_CacheEntryGetBuffer(Handle entry, size_t index, void** base, Handle attributes);
Handle TRITONCACHE_CacheEntrySetBuffer(Handle entry, size_t index, void* base, Handle attributes);
Handle TRITONCACHE_Copy(Handle allocator, Handle entry);

enum { NOT_FOUND = 2, INVALID = 3, EXISTS = 6 };

struct Entry {
  char* key;
  char* bytes;
  size_t size;
  struct Entry* next;
};

struct Cache {
  pthread_mutex_t lock;
  struct Entry* entries;
};

#define TRY(call)            \
  do {                       \
    Handle failure = (call); \
    if (failure) {           \
      return failure;        \
    }                        \
  } while (0)

Handle TRITONCACHE_CacheInitialize(struct Cache** cache, const char* config)
{
  if (strstr(config, "\"refuse\"")) {
    return TRITONSERVER_ErrorNew(INVALID, "told to refuse");
  }
  uint32_t major, minor;
  TRY(TRITONCACHE_ApiVersion(&major, &minor));
  if (major != 0 || minor < 1) {
    return TRITONSERVER_ErrorNew(INVALID, "the interface is not that of 0.1");
  }
  *cache = calloc(1, sizeof(struct Cache));
  pthread_mutex_init(&(*cache)->lock, NULL);
  return NULL;
}

Handle TRITONCACHE_CacheFinalize(struct Cache* cache)
{
  while (cache->entries) {
    struct Entry* entry = cache->entries;
    cache->entries = entry->next;
    free(entry->key);
    free(entry->bytes);
    free(entry);
  }
  free(cache);
  return NULL;
}

static Handle lookup(struct Cache* cache, const char* key, Handle entry, Handle allocator)
{
  struct Entry* found = cache->entries;
#ifndef ANY_ENTRY
  while (found && strcmp(found->key, key)) {
    found = found->next;
  }
#endif
  if (!found) {
    return TRITONSERVER_ErrorNew(NOT_FOUND, "no such entry");
  }
  Handle attributes;
  TRY(TRITONSERVER_BufferAttributesNew(&attributes));
#ifdef CUTS
  TRY(TRITONSERVER_BufferAttributesSetByteSize(attributes, found->size / 2));
#else
  TRY(TRITONSERVER_BufferAttributesSetByteSize(attributes, found->size));
#endif
  TRY(TRITONCACHE_CacheEntryAddBuffer(entry, found->bytes, attributes));
#ifdef TWICE
  TRY(TRITONCACHE_CacheEntryAddBuffer(entry, found->bytes, attributes));
#endif
  TRY(TRITONSERVER_BufferAttributesDelete(attributes));
#ifdef COPIES_NOTHING
  (void)allocator;
  return NULL;
#else
  return TRITONCACHE_Copy(allocator, entry);
#endif
}

static Handle insert(struct Cache* cache, const char* key, Handle entry, Handle allocator)
{
  for (struct Entry* known = cache->entries; known; known = known->next) {
    if (!strcmp(known->key, key)) {
      return TRITONSERVER_ErrorNew(EXISTS, "the key is in use");
    }
  }
  size_t count, size;
  TRY(TRITONCACHE_CacheEntryBufferCount(entry, &count));
  if (count != 1) {
    return TRITONSERVER_ErrorNew(INVALID, "an entry must have one buffer");
  }
  Handle attributes;
  void* base;
  TRY(TRITONSERVER_BufferAttributesNew(&attributes));
  TRY(TRITONCACHE_CacheEntryGetBuffer(entry, 0, &base, attributes));
  TRY(TRITONSERVER_BufferAttributesByteSize(attributes, &size));
  TRY(TRITONSERVER_BufferAttributesDelete(attributes));
  struct Entry* made = calloc(1, sizeof(struct Entry));
  made->key = strdup(key);
  made->bytes = malloc(size);
  made->size = size;
  made->next = cache->entries;
  cache->entries = made;
  TRY(TRITONCACHE_CacheEntrySetBuffer(entry, 0, made->bytes, NULL));
  Handle failure = TRITONCACHE_Copy(allocator, entry);
#ifdef CHANGES
  made->bytes[size / 2] ^= 1;
#endif
  return failure;
}

Handle TRITONCACHE_CacheLookup(struct Cache* cache, const char* key, Handle entry, Handle allocator)
{
#ifdef FAILS
  return TRITONSERVER_ErrorNew(INVALID, "told to fail");
#endif
  pthread_mutex_lock(&cache->lock);
  Handle failure = lookup(cache, key, entry, allocator);
  pthread_mutex_unlock(&cache->lock);
  return failure;
}

Handle TRITONCACHE_CacheInsert(struct Cache* cache, const char* key, Handle entry, Handle allocator)
{
  pthread_mutex_lock(&cache->lock);
  Handle failure = insert(cache, key, entry, allocator);
  pthread_mutex_unlock(&cache->lock);
  return failure;
}
