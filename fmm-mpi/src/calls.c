/* The MPI calls that src/calls.rs makes, with arguments of plain types: handles and constants of MPI differ from one MPI
 * to the next (integers in MPICH, addresses in Open MPI). A communicator is its Fortran handle. A request is kept in 64
 * bits. Functions return MPI's code; 0 is success. */

#include <mpi.h>
#include <stdint.h>
#include <string.h>

_Static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "a request has at most 64 bits");
_Static_assert(MPI_SUCCESS == 0, "success is 0");

/* Whether the library that answers has the handles of this file's header. A process can hold two, and the one that a
 * Python package loads for all stands before the one that is linked here. Several libraries share the handles of MPICH.
 * The text has room for the answer of any. */
int fmm_mpi_expected(void) {
    char text[1 << 14] = "";
    int length = 0;
    if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return 0;
#if defined(OPEN_MPI)
    return strstr(text, "Open MPI") != NULL;
#else
    return strstr(text, "Open MPI") == NULL;
#endif
}

/* Whether calls may be made now. */
int fmm_mpi_runs(void) {
    int started = 0, finished = 0;
    if (!fmm_mpi_expected()) return 0;
    MPI_Initialized(&started);
    if (started) MPI_Finalized(&finished);
    return started && !finished;
}

int fmm_mpi_start(void) {
    int provided = 0;
    return MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
}

/* Whether any thread may make calls, one at a time. */
int fmm_mpi_serialized(void) {
    int provided = MPI_THREAD_SINGLE;
    return MPI_Query_thread(&provided) == MPI_SUCCESS && provided >= MPI_THREAD_SERIALIZED;
}

int fmm_mpi_finish(void) { return MPI_Finalize(); }

void fmm_mpi_abort(int code) { MPI_Abort(MPI_COMM_WORLD, code); }

int fmm_mpi_world(void) { return (int)MPI_Comm_c2f(MPI_COMM_WORLD); }

/* A communicator of the same ranks whose errors are returned. */
int fmm_mpi_duplicate(int comm, int *own, int *rank, int *size) {
    MPI_Comm copy;
    int code = MPI_Comm_dup(MPI_Comm_f2c((MPI_Fint)comm), &copy);
    if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS) code = MPI_Comm_rank(copy, rank);
    if (code == MPI_SUCCESS) code = MPI_Comm_size(copy, size);
    if (code == MPI_SUCCESS) *own = (int)MPI_Comm_c2f(copy);
    return code;
}

int fmm_mpi_send(int comm, const void *bytes, int count, int to, int tag, uint64_t *request) {
    MPI_Request raw;
    int code = MPI_Isend(bytes, count, MPI_BYTE, to, tag, MPI_Comm_f2c((MPI_Fint)comm), &raw);
    if (code == MPI_SUCCESS) memcpy(request, &raw, sizeof raw);
    return code;
}

int fmm_mpi_receive(int comm, void *bytes, int count, int from, int tag, uint64_t *request) {
    MPI_Request raw;
    int code = MPI_Irecv(bytes, count, MPI_BYTE, from, tag, MPI_Comm_f2c((MPI_Fint)comm), &raw);
    if (code == MPI_SUCCESS) memcpy(request, &raw, sizeof raw);
    return code;
}

int fmm_mpi_test(uint64_t *request, int *done) {
    MPI_Request raw;
    memcpy(&raw, request, sizeof raw);
    int code = MPI_Test(&raw, done, MPI_STATUS_IGNORE);
    memcpy(request, &raw, sizeof raw);
    return code;
}

/* Whether a message is there, and its bytes. */
int fmm_mpi_probe(int comm, int from, int tag, int *there, int *count) {
    MPI_Status status;
    int code = MPI_Iprobe(from, tag, MPI_Comm_f2c((MPI_Fint)comm), there, &status);
    if (code == MPI_SUCCESS && *there) code = MPI_Get_count(&status, MPI_BYTE, count);
    return code;
}

/* The name of the host, and the text of a code; `text` holds `size` bytes. */
int fmm_mpi_host(char *text, int size) {
    char name[MPI_MAX_PROCESSOR_NAME];
    int length = 0, code = MPI_Get_processor_name(name, &length);
    if (code == MPI_SUCCESS) {
        if (length >= size) length = size - 1;
        memcpy(text, name, (size_t)length);
        text[length] = 0;
    }
    return code;
}

void fmm_mpi_text(int code, char *text, int size) {
    char words[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (MPI_Error_string(code, words, &length) != MPI_SUCCESS) length = 0;
    if (length >= size) length = size - 1;
    memcpy(text, words, (size_t)length);
    text[length] = 0;
}
