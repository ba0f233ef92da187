// candidates_params.h: arguments of the candidates kernels, for the shaders and for dylib/gpu.
#ifndef MARKBASE_CANDIDATES_PARAMS_H
#define MARKBASE_CANDIDATES_PARAMS_H

enum : uint32_t {
  kListEntries = 256,      // of a list: what a row returns
  kSelectThreads = 256,    // threads of a threadgroup
  kChunkLogits = 8192,     // of the vocabulary, for one threadgroup of candidates_chunk
  kMergedLists = 34        // lists that one threadgroup of candidates_merge or candidates_finish takes: enough to need
                           // no merge for 262208 tokens, Gemma's largest vocabulary
};

struct CandidatesParams {
  uint32_t vocabulary;
  uint32_t first_row;  // output row that row 0 of the dispatch is
  uint32_t groups;     // page groups of the plan, to find the adjustments in the input block
  uint32_t lists;      // lists of a row that the dispatch reads (merge, finish) or writes (chunk)
  uint32_t merged;     // lists of a row that candidates_merge writes
};

#endif
