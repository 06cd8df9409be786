/* Faults at the n-th change of the file system, for tests: preloaded, it stands before libc.

   Every call that changes something under the watched folders is counted. At the n-th the process
   kills itself, or the call fails, or writes half. Nothing happens until faults_arm() is called.
   The counters and the record of the calls lie in shared memory, so a parent that called
   faults_share() before it forked reads them after its child was killed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { WRITE = 1, CREATE = 2, RENAME = 4, REMOVE = 8, SYNC = 16, RESIZE = 32, CLOSE = 64 };
enum action { COUNT, KILL, TORN, FAIL, SHORT, HALF, STOP };
enum { LINES = 1 << 14, WIDTH = 160, FILES = 1 << 16, ROOTS = 4096 };
enum { GO_ON = -2 }; /* what decide() says beside -1 (fail, errno set) and a number of bytes */

struct shared {
  long count, fired;
  char lines[LINES][WIDTH];
};

static struct shared *shared;
static char roots[ROOTS];
static long at;
static int action, code, kinds, sticky;
static char written[FILES];

void *faults_share(void) {
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return shared == MAP_FAILED ? NULL : shared;
}

/* WHERE: folders, one a line. With STICK calls of KINDS fail from the n-th on, else only the n-th. */
void faults_arm(const char *where, long n, int what, int error, int which, int stick) {
  strncpy(roots, where, ROOTS - 1);
  at = n, action = what, code = error, kinds = which, sticky = stick;
  memset(written, 0, FILES);
  memset(shared, 0, sizeof *shared);
}

static int watched(const char *path) {
  for (const char *root = roots; *root;) {
    size_t length = strcspn(root, "\n");
    if (length && !strncmp(path, root, length) && (path[length] == '/' || !path[length])) return 1;
    root += length + (root[length] == '\n');
  }
  return 0;
}

static int of_file(int fd, char *path) {
  char name[64];
  snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(name, path, PATH_MAX - 1);
  path[length > 0 ? length : 0] = 0;
  return length > 0;
}

static int of_name(int folder, const char *name, char *path) {
  char base[PATH_MAX] = "";
  if (!name) return 0;
  if (*name == '/') return snprintf(path, PATH_MAX, "%s", name) > 0;
  if (folder == AT_FDCWD ? !getcwd(base, sizeof base) : !of_file(folder, base)) return 0;
  return snprintf(path, PATH_MAX, "%.2000s/%.2000s", base, name) > 0;
}

/* Count a call on PATH; SIZE is how much it writes, 0 where it does not write. */
static long decide(enum kind kind, const char *call, const char *path, size_t size) {
  if (!*roots || !watched(path)) return GO_ON;
  long n = __atomic_fetch_add(&shared->count, 1, __ATOMIC_SEQ_CST);
  if (n < LINES) {
    size_t length = strlen(path), most = WIDTH - 20;
    const char *tail = path + (length > most ? length - most : 0);
    snprintf(shared->lines[n], WIDTH, "%d %s %s", kind, call, tail);
  }
  int mine = n == at || (sticky && n > at);
  if (action == COUNT || !mine || !(kind & kinds)) return GO_ON;
  shared->fired++;
  if (action == KILL || (action == TORN && size < 2)) kill(getpid(), SIGKILL), pause();
  if (action == STOP) return kill(getpid(), SIGSTOP), GO_ON;
  if (action == TORN || action == SHORT || (action == HALF && n == at)) {
    if (size >= 2) return size / 2;
    if (action == SHORT) return GO_ON;
  }
  errno = code;
  return -1;
}

static void end_torn(void) {
  if (action == TORN) kill(getpid(), SIGKILL), pause();
}

#define REAL(name) \
  static __typeof__(name) *real; \
  if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

#define ON_FILE(kind, fd, size, normal, shorter) \
  char path[PATH_MAX]; \
  if (!*roots || !of_file(fd, path) || !watched(path)) return normal; \
  if (kind != SYNC && fd < FILES) written[fd] = 1; \
  long part = decide(kind, __func__, path, size); \
  if (part == GO_ON) return normal; \
  if (part < 0) return -1; \
  long done = shorter; \
  end_torn(); \
  return done

#define WRITER(name, ...) \
  ssize_t name(int fd, const void *data, size_t size __VA_OPT__(, off_t place)) { \
    REAL(name); \
    ON_FILE(WRITE, fd, size, real(fd, data, size __VA_OPT__(, place)), \
            real(fd, data, part __VA_OPT__(, place))); \
  }
WRITER(write)
WRITER(pwrite, x)
WRITER(pwrite64, x)

#define GATHERER(name, ...) \
  ssize_t name(int fd, const struct iovec *parts, int count __VA_OPT__(, off_t place)) { \
    REAL(name); \
    ON_FILE(WRITE, fd, (size_t)count, real(fd, parts, count __VA_OPT__(, place)), \
            real(fd, parts, part __VA_OPT__(, place))); \
  }
GATHERER(writev)
GATHERER(pwritev, x)
GATHERER(pwritev64, x)

ssize_t copy_file_range(int in, off64_t *from, int fd, off64_t *to, size_t size, unsigned flags) {
  REAL(copy_file_range);
  ON_FILE(WRITE, fd, size, real(in, from, fd, to, size, flags), real(in, from, fd, to, part, flags));
}

#define SENDER(name, offset) \
  ssize_t name(int fd, int in, offset *from, size_t size) { \
    REAL(name); \
    ON_FILE(WRITE, fd, size, real(fd, in, from, size), real(fd, in, from, part)); \
  }
SENDER(sendfile, off_t)
SENDER(sendfile64, off64_t)

#define RESERVER(name) \
  int name(int fd, int mode, off_t from, off_t size) { \
    REAL(name); \
    ON_FILE(RESIZE, fd, 0, real(fd, mode, from, size), -1); \
  }
RESERVER(fallocate)
RESERVER(fallocate64)

#define TRUNCATER(name) \
  int name(int fd, off_t size) { \
    REAL(name); \
    ON_FILE(RESIZE, fd, 0, real(fd, size), -1); \
  }
TRUNCATER(ftruncate)
TRUNCATER(ftruncate64)

#define SYNCER(name) \
  int name(int fd) { \
    REAL(name); \
    ON_FILE(SYNC, fd, 0, real(fd), -1); \
  }
SYNCER(fsync)
SYNCER(fdatasync)

int close(int fd) {
  REAL(close);
  char path[PATH_MAX];
  if (!*roots || fd < 0 || fd >= FILES || !written[fd]) return real(fd);
  written[fd] = 0;
  long part = of_file(fd, path) ? decide(CLOSE, "close", path, 0) : GO_ON;
  int problem = errno, done = real(fd);
  if (part == GO_ON) return done;
  errno = problem;
  return -1;
}

/* Buffered files of C: libc writes them by calls of its own, which nobody can stand before. */
size_t fwrite(const void *data, size_t size, size_t count, FILE *file) {
  REAL(fwrite);
  char path[PATH_MAX];
  if (!*roots || !of_file(fileno(file), path) || !watched(path)) return real(data, size, count, file);
  long part = decide(WRITE, "fwrite", path, count);
  if (part == GO_ON) return real(data, size, count, file);
  if (part < 0) return 0;
  size_t done = real(data, size, part, file);
  fflush(file);
  end_torn();
  if (done == (size_t)part && action != TORN) errno = action == SHORT ? EINTR : code;
  return done;
}

#define FLUSHER(name) \
  int name(FILE *file) { \
    REAL(name); \
    char path[PATH_MAX]; \
    if (!*roots || !file || !of_file(fileno(file), path) || !watched(path)) return real(file); \
    if ((fcntl(fileno(file), F_GETFL) & O_ACCMODE) == O_RDONLY) return real(file); \
    long part = decide(WRITE, #name, path, 0); \
    int problem = errno, done = real(file); \
    if (part == GO_ON) return done; \
    errno = problem; \
    return EOF; \
  }
FLUSHER(fclose)
FLUSHER(fflush)

#define ON_NAME(kind, folder, name, normal) \
  char path[PATH_MAX]; \
  if (!*roots || !of_name(folder, name, path)) return normal; \
  return decide(kind, __func__, path, 0) == GO_ON ? normal : -1

#define OPENER(function, folder, ...) \
  int function(__VA_ARGS__ __VA_OPT__(,) const char *name, int flags, ...) { \
    REAL(function); \
    va_list rest; \
    va_start(rest, flags); \
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
    va_end(rest); \
    if (!(flags & (O_CREAT | O_TRUNC)) && (flags & O_ACCMODE) == O_RDONLY) \
      return real(__VA_OPT__(where,) name, flags, mode); \
    ON_NAME(CREATE, folder, name, real(__VA_OPT__(where,) name, flags, mode)); \
  }
OPENER(open, AT_FDCWD)
OPENER(open64, AT_FDCWD)
OPENER(openat, where, int where)
OPENER(openat64, where, int where)

#define STREAM(function) \
  FILE *function(const char *name, const char *mode) { \
    REAL(function); \
    char path[PATH_MAX]; \
    if (!*roots || *mode == 'r' || !of_name(AT_FDCWD, name, path)) return real(name, mode); \
    return decide(CREATE, #function, path, 0) == GO_ON ? real(name, mode) : NULL; \
  }
STREAM(fopen)
STREAM(fopen64)

int creat(const char *name, mode_t mode) {
  REAL(creat);
  ON_NAME(CREATE, AT_FDCWD, name, real(name, mode));
}
int mkdir(const char *name, mode_t mode) {
  REAL(mkdir);
  ON_NAME(CREATE, AT_FDCWD, name, real(name, mode));
}
int mkdirat(int folder, const char *name, mode_t mode) {
  REAL(mkdirat);
  ON_NAME(CREATE, folder, name, real(folder, name, mode));
}
int symlink(const char *to, const char *name) {
  REAL(symlink);
  ON_NAME(CREATE, AT_FDCWD, name, real(to, name));
}
int symlinkat(const char *to, int folder, const char *name) {
  REAL(symlinkat);
  ON_NAME(CREATE, folder, name, real(to, folder, name));
}
int link(const char *to, const char *name) {
  REAL(link);
  ON_NAME(CREATE, AT_FDCWD, name, real(to, name));
}
int linkat(int from, const char *to, int folder, const char *name, int flags) {
  REAL(linkat);
  ON_NAME(CREATE, folder, name, real(from, to, folder, name, flags));
}
int truncate(const char *name, off_t size) {
  REAL(truncate);
  ON_NAME(RESIZE, AT_FDCWD, name, real(name, size));
}
int truncate64(const char *name, off64_t size) {
  REAL(truncate64);
  ON_NAME(RESIZE, AT_FDCWD, name, real(name, size));
}
int unlink(const char *name) {
  REAL(unlink);
  ON_NAME(REMOVE, AT_FDCWD, name, real(name));
}
int unlinkat(int folder, const char *name, int flags) {
  REAL(unlinkat);
  ON_NAME(REMOVE, folder, name, real(folder, name, flags));
}
int rmdir(const char *name) {
  REAL(rmdir);
  ON_NAME(REMOVE, AT_FDCWD, name, real(name));
}
int remove(const char *name) {
  REAL(remove);
  ON_NAME(REMOVE, AT_FDCWD, name, real(name));
}
int rename(const char *from, const char *name) {
  REAL(rename);
  ON_NAME(RENAME, AT_FDCWD, name, real(from, name));
}
int renameat(int folder, const char *from, int to, const char *name) {
  REAL(renameat);
  ON_NAME(RENAME, to, name, real(folder, from, to, name));
}
int renameat2(int folder, const char *from, int to, const char *name, unsigned flags) {
  REAL(renameat2);
  ON_NAME(RENAME, to, name, real(folder, from, to, name, flags));
}

long syscall(long number, ...) {
  static long (*real)(long, ...);
  if (!real) real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  va_list rest;
  va_start(rest, number);
  long a[6];
  for (int i = 0; i < 6; i++) a[i] = va_arg(rest, long);
  va_end(rest);
  char path[PATH_MAX];
  if (*roots && number == SYS_renameat2 && of_name(a[2], (const char *)a[3], path) &&
      decide(RENAME, "renameat2", path, 0) != GO_ON)
    return -1;
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
