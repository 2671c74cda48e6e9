/* Translates standard input line by line with a SavedModel: TensorFlow's C API, no Python.
 *
 *     translate SAVED_MODEL INPUT OUTPUT SENTENCEPIECE_LIBRARY < lines
 *
 * INPUT and OUTPUT name the tensors of the signature serving_default, as
 * `saved_model_cli show --all --dir SAVED_MODEL` prints them, such as serving_default_text:0.
 * SENTENCEPIECE_LIBRARY is TensorFlow Text's _sentencepiece_tokenizer.so. */

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/tf_tstring.h"

static TF_Status* status;

static void check(const char* what) {
  if (TF_GetCode(status) == TF_OK) return;
  fprintf(stderr, "%s: %s\n", what, TF_Message(status));
  exit(1);
}

/* The output of an operation that is named as in "name:0". */
static TF_Output output(TF_Graph* graph, char* tensor) {
  char* colon = strrchr(tensor, ':');
  if (colon) *colon = '\0';
  TF_Output found = {TF_GraphOperationByName(graph, tensor), colon ? atoi(colon + 1) : 0};
  if (found.oper) return found;
  fprintf(stderr, "%s: the graph has no such operation\n", tensor);
  exit(1);
}

static TF_Tensor* read_lines(FILE* file) {
  char** lines = NULL;
  size_t* lengths = NULL;
  int64_t count = 0;
  char* line = NULL;
  size_t space = 0;
  for (ssize_t length; (length = getline(&line, &space, file)) >= 0; count++) {
    if (length && line[length - 1] == '\n') length--;
    lines = realloc(lines, (count + 1) * sizeof *lines);
    lengths = realloc(lengths, (count + 1) * sizeof *lengths);
    lines[count] = memcpy(malloc(length + 1), line, length);
    lengths[count] = length;
  }
  free(line);
  TF_Tensor* tensor = TF_AllocateTensor(TF_STRING, &count, 1, count * sizeof(TF_TString));
  TF_TString* strings = TF_TensorData(tensor);
  for (int64_t i = 0; i < count; i++) {
    TF_StringInit(&strings[i]);
    TF_StringCopy(&strings[i], lines[i], lengths[i]);
    free(lines[i]);
  }
  free(lines);
  free(lengths);
  return tensor;
}

int main(int argc, char** argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: %s SAVED_MODEL INPUT OUTPUT SENTENCEPIECE_LIBRARY\n", argv[0]);
    return 2;
  }
  status = TF_NewStatus();
  TF_Library* library = TF_LoadLibrary(argv[4], status);
  check(argv[4]);

  TF_Graph* graph = TF_NewGraph();
  TF_SessionOptions* options = TF_NewSessionOptions();
  const char* tags[] = {"serve"};
  TF_Session* session =
      TF_LoadSessionFromSavedModel(options, NULL, argv[1], tags, 1, graph, NULL, status);
  check(argv[1]);

  TF_Output input = output(graph, argv[2]), fetch = output(graph, argv[3]);
  TF_Tensor *texts = read_lines(stdin), *translations = NULL;
  TF_SessionRun(session, NULL, &input, &texts, 1, &fetch, &translations, 1, NULL, 0, NULL, status);
  check("translating");
  TF_TString* strings = TF_TensorData(translations);
  for (int64_t i = 0; i < TF_TensorElementCount(translations); i++) {
    fwrite(TF_StringGetDataPointer(&strings[i]), 1, TF_StringGetSize(&strings[i]), stdout);
    putchar('\n');
  }

  TF_DeleteTensor(texts);
  TF_DeleteTensor(translations);
  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  TF_DeleteSessionOptions(options);
  TF_DeleteGraph(graph);
  TF_DeleteLibraryHandle(library);
  TF_DeleteStatus(status);
  return 0;
}
