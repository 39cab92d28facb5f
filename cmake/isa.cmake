# Kernels for one instruction set live in files named *_avx512bf16.cc and so on and are compiled for it; the CPU chooses
# at run time (src/backend/cpu/cpu_features.h). Such a file includes only <immintrin.h> and plain declarations, so that
# no inline function of a shared header is ever compiled for an instruction set the machine may lack.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(avx2_flags -mavx2 -mfma -mf16c)
  set(avx512_flags ${avx2_flags} -mavx512f -mavx512bw -mavx512vl -mavx512dq)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC's own AVX-512 headers trip this warning (GCC bug 105593).
    list(APPEND avx512_flags -Wno-maybe-uninitialized)
  endif()
  set(avx512bf16_flags ${avx512_flags} -mavx512bf16)
  set(amx_flags ${avx512bf16_flags} -mamx-tile -mamx-bf16)
  foreach(isa avx2 avx512 avx512bf16 amx)
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/backend/cpu/*_${isa}.cc)
    set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS "${${isa}_flags}")
  endforeach()
endif()

# A compiler that fuses multiplications and additions may do so in one tile size and not in another, and rounds otherwise
# than who defined a format.
set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/src/backend/cpu/linear_portable.cc
                            ${CMAKE_CURRENT_SOURCE_DIR}/src/io/ggml_blocks.cc PROPERTIES
  COMPILE_OPTIONS -ffp-contract=off)

# Where translation units are merged, such files and their portable counterparts stay alone: they include the same
# kernels for another width. (CMake merges none that has options of its own.)
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/backend/cpu/*_portable.cc)
set_source_files_properties(${sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
