/* Keeps a copy of what is synced: after a power cut nothing else is sure to be there.

   Loaded before the C library (LD_PRELOAD). After each fsync or fdatasync below POWER_CUT_ROOT, a file's content goes to
   POWER_CUT_SHADOW/files/INODE and a directory's names, kinds and inodes go to POWER_CUT_SHADOW/directories/INODE. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

static void copy_file(int from, int to) {
    char buffer[1 << 16];
    ssize_t size;
    while ((size = read(from, buffer, sizeof buffer)) > 0)
        if (write(to, buffer, (size_t)size) != size) abort();
}

static void copy_names(const char *path, int to) {
    DIR *directory = opendir(path);
    struct dirent *entry;
    if (directory == NULL) return;
    while ((entry = readdir(directory)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            dprintf(to, "%c %lu %s\n", entry->d_type == DT_DIR ? 'd' : 'f', (unsigned long)entry->d_ino, entry->d_name);
    closedir(directory);
}

static void record(int descriptor) {
    const char *root = getenv("POWER_CUT_ROOT"), *shadow = getenv("POWER_CUT_SHADOW");
    char link[64], path[PATH_MAX], target[PATH_MAX + 96], scratch[PATH_MAX + 128];
    struct stat status;
    if (root == NULL || shadow == NULL || fstat(descriptor, &status) != 0) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return;
    path[length] = 0;
    if (strncmp(path, root, strlen(root)) != 0) return;
    const char *kind = S_ISDIR(status.st_mode) ? "directories" : "files";
    snprintf(target, sizeof target, "%s/%s/%lu", shadow, kind, (unsigned long)status.st_ino);
    snprintf(scratch, sizeof scratch, "%s.%d", target, (int)getpid());
    int to = open(scratch, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (to < 0) abort();
    if (S_ISDIR(status.st_mode)) {
        copy_names(path, to);
    } else {
        int from = open(link, O_RDONLY);
        if (from < 0) abort();
        copy_file(from, to);
        close(from);
    }
    close(to);
    rename(scratch, target);
}

static int synced(const char *name, int descriptor) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    int result = real(descriptor);
    if (result == 0) {
        pthread_mutex_lock(&one_at_a_time);
        record(descriptor);
        pthread_mutex_unlock(&one_at_a_time);
    }
    return result;
}

int fsync(int descriptor) { return synced("fsync", descriptor); }

int fdatasync(int descriptor) { return synced("fdatasync", descriptor); }
