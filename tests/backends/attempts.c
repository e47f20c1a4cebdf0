// A library that the tests preload into the processes of frameworks: code that such a process runs against the server's will.
//
// Before `main`, it tries what NEREID_ATTEMPTS lists, a line for each: a verb and its object, where `@` stands for the server's
// process. It writes the error number of each, or 0, to a file in NEREID_OUTCOMES that is named after the process. Other
// programs that load it are left alone.

#define _GNU_SOURCE

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define LONGEST 4096

static int open_file(const char *path, int flags) {
    int file = open(path, flags, 0600);
    if (file < 0) return errno;
    close(file);
    return 0;
}

static int list_folder(const char *path) {
    DIR *folder = opendir(path);
    if (folder == NULL) return errno;
    closedir(folder);
    return 0;
}

static int connect_to(int port) {
    int stream = socket(AF_INET, SOCK_STREAM, 0);
    if (stream < 0) return errno;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int error = connect(stream, (struct sockaddr *)&address, sizeof address) < 0 ? errno : 0;
    close(stream);
    return error;
}

// Permission is checked before the address, which is not mapped.
static int read_memory_of(pid_t process) {
    char byte;
    struct iovec here = {&byte, 1}, there = {(void *)1, 1};
    if (process_vm_readv(process, &here, 1, &there, 1, 0) >= 0 || errno == EFAULT) return 0;
    return errno;
}

static int attempt(const char *verb, const char *object) {
    if (strcmp(verb, "read") == 0) return open_file(object, O_RDONLY);
    if (strcmp(verb, "write") == 0) return open_file(object, O_WRONLY | O_CREAT | O_APPEND);
    if (strcmp(verb, "list") == 0) return list_folder(object);
    if (strcmp(verb, "connect") == 0) return connect_to(atoi(object));
    if (strcmp(verb, "peek") == 0) return read_memory_of(atoi(object));
    if (strcmp(verb, "signal") == 0) return kill(atoi(object), 0) < 0 ? errno : 0;
    return ENOSYS;
}

__attribute__((constructor)) static void try_all(int count, char **arguments) {
    const char *listed = getenv("NEREID_ATTEMPTS"), *folder = getenv("NEREID_OUTCOMES");
    if (count < 2 || strcmp(arguments[1], "host-backend") != 0 || listed == NULL || folder == NULL) return;
    char path[LONGEST], object[LONGEST];
    snprintf(path, sizeof path, "%s/%d", folder, getpid());
    FILE *outcomes = fopen(path, "w");
    if (outcomes == NULL) return;
    char *lines = strdup(listed), *rest = lines, *line;
    while ((line = strsep(&rest, "\n")) != NULL) {
        char *words = strdup(line), *after = words, *verb = strsep(&after, " ");
        const char *server = after == NULL ? NULL : strchr(after, '@');
        if (server != NULL) {
            snprintf(object, sizeof object, "%.*s%d%s", (int)(server - after), after, getppid(), server + 1);
        } else {
            snprintf(object, sizeof object, "%s", after == NULL ? "" : after);
        }
        fprintf(outcomes, "%d %s\n", attempt(verb, object), line);
        free(words);
    }
    free(lines);
    fclose(outcomes);
}
